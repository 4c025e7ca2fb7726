#pragma once
#include <map>
#include <span>
#include <vector>

namespace tandem::speculate {

/// 1, 2, 3, 4, 6, 8, 12, 16, ... below `most`, and `most`, at least 1: the speed-up is flat about
/// its best.
std::vector<int> gammas_up_to(int most);

/// How many tokens chains have in the next round: the number with the most expected tokens a
/// second, from what rounds took here and how often drafted tokens were accepted; 0, a plain step,
/// where nothing is faster. It learns as rounds go by: a first round of a kind does not count
/// (graphs are recorded in it), times of numbers that were not tried yet lie on the line through
/// those that were, and now and then a round tries a neighbour, or drafting where plain steps are
/// faster, because texts and their lengths change.
/// source   the marginal rule of vLLM #48627, over all numbers instead of the next one (best_gamma)
class GammaChooser {
 public:
  /// gammas   numbers to choose from, rising, from 1 on; 0 is always among them
  explicit GammaChooser(std::vector<int> gammas);

  /// 0 and the numbers to choose from.
  const std::vector<int>& gammas() const { return gammas_; }
  /// The number for a round of these sequences.
  int choose(std::span<const int> seqs);

  /// Tokens of one sequence in a round, those after a rejected one not counted as tested.
  struct Tested {
    int seq = 0, tested = 0, accepted = 0;
  };
  /// A round is over.
  /// batch      sequences that it began with
  /// seconds    from the end of the round before, if nothing else came between; else 0: not known
  /// sequences  of those that go on
  void observe(int gamma, size_t batch, double seconds, std::span<const Tested> sequences);
  void forget(int seq);

  /// Share of tested tokens that were accepted of late, over all sequences.
  double alpha() const;

 private:
  /// Before anything is known.
  static constexpr double kGuess = 0.7;
  struct Accepted {
    double tested = 0, accepted = 0;
    /// Shrunk to a guess, which counts as much as `prior` tested tokens.
    double share(double guess, double prior) const;
    void add(const Tested& round, double memory);
  };
  struct Time {
    double seconds = 0;
    int rounds = 0;            // that counted; the first does not
    bool is_warm = false;      // the first one was
    bool is_borrowed = false;  // from a batch of another size
  };
  /// Of batches of about one size.
  struct Times {
    std::vector<Time> of;  // [gammas]
    int rounds = 0;
    int probes = 0;
    int plain = 0;  // choices of plain steps one after the other
  };

  Times& times_of(size_t batch);
  /// Seconds of a round with each of the numbers.
  std::vector<double> expected(const Times& times) const;
  size_t best_of(const Times& times, std::span<const int> seqs) const;
  size_t index_of(int gamma) const;

  std::vector<int> gammas_;
  std::map<size_t, Times> times_;  // by batch, rounded up to a power of two
  Accepted all_;
  std::map<int, Accepted> of_seq_;
};

}  // namespace tandem::speculate
