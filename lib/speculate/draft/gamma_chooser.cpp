#include "speculate/draft/gamma_chooser.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "speculate/plan/chain_tokens.h"

namespace tandem::speculate {
namespace {

// Tested tokens that a share must outweigh, the batch's or a sequence's own, and those that are
// remembered.
constexpr double kBatchPrior = 4, kSequencePrior = 64, kSequenceMemory = 256, kBatchMemory = 512;
// Rounds between two that try another number: at most 1 % of the time for one that takes twice as
// long for its tokens.
constexpr int kProbeEvery = 100;
// A new time's share of the mean; one that is longer than the known one counts as no more than
// kLonger times that, for something else may have run. The first few count by the shortest.
constexpr double kNew = 0.125, kLonger = 1.25;
constexpr int kFirst = 3;

}  // namespace

double GammaChooser::Accepted::share(double guess, double prior) const {
  return (accepted + prior * guess) / (tested + prior);
}

double GammaChooser::alpha() const { return all_.share(kGuess, kBatchPrior); }

void GammaChooser::Accepted::add(const Tested& round, double memory) {
  tested += round.tested;
  accepted += round.accepted;
  if (tested <= memory) return;
  accepted *= memory / tested;
  tested = memory;
}

std::vector<int> gammas_up_to(int most) {
  std::vector<int> gammas;
  for (unsigned gamma = 1; static_cast<int>(gamma) <= most;
       gamma += std::max(1u, std::bit_floor(gamma) / 2))
    gammas.push_back(static_cast<int>(gamma));
  if (gammas.back() < most) gammas.push_back(most);
  return gammas;
}

GammaChooser::GammaChooser(std::vector<int> gammas) : gammas_(std::move(gammas)) {
  TANDEM_CHECK(!gammas_.empty() && gammas_.front() > 0 && std::ranges::is_sorted(gammas_),
               "{} values of gamma must be positive and ascending", gammas_.size());
  gammas_.insert(gammas_.begin(), 0);
}

size_t GammaChooser::index_of(int gamma) const {
  return static_cast<size_t>(std::ranges::find(gammas_, gamma) - gammas_.begin());
}

GammaChooser::Times& GammaChooser::times_of(size_t batch) {
  const size_t size = std::bit_ceil(std::max<size_t>(batch, 1));
  const auto [it, is_new] = times_.try_emplace(size);
  if (!is_new) return it->second;
  it->second.of.resize(gammas_.size());
  // A batch of another size shows how the numbers compare.
  const Times* nearest = nullptr;
  if (const auto next = std::next(it); next != times_.end()) nearest = &next->second;
  if (nearest == nullptr && it != times_.begin()) nearest = &std::prev(it)->second;
  for (size_t i = 0; nearest != nullptr && i < gammas_.size(); ++i)
    if (nearest->of[i].rounds > 0)
      it->second.of[i] = {.seconds = nearest->of[i].seconds, .rounds = 1, .is_borrowed = true};
  return it->second;
}

std::vector<double> GammaChooser::expected(const Times& times) const {
  std::vector<size_t> known;
  for (size_t i = 0; i < gammas_.size(); ++i)
    if (times.of[i].rounds > 0) known.push_back(i);
  TANDEM_CHECK(known.size() >= 2, "times of {} values of gamma are too few, expected 2",
               known.size());
  std::vector<double> seconds;
  for (size_t i = 0; i < gammas_.size(); ++i) {
    // The line through the neighbours that are known, or through the last two.
    const auto above = std::ranges::lower_bound(known, i);
    if (above != known.end() && *above == i) {
      seconds.push_back(times.of[i].seconds);
      continue;
    }
    const auto to = above == known.end()     ? known.end() - 1
                    : above == known.begin() ? known.begin() + 1
                                             : above;
    const size_t a = *(to - 1), b = *to;
    const double slope = (times.of[b].seconds - times.of[a].seconds) / (gammas_[b] - gammas_[a]);
    seconds.push_back(times.of[a].seconds + std::max(slope, 0.0) * (gammas_[i] - gammas_[a]));
  }
  return seconds;
}

size_t GammaChooser::best_of(const Times& times, std::span<const int> seqs) const {
  std::vector<double> alphas;
  for (const int seq : seqs) {
    const auto it = of_seq_.find(seq);
    alphas.push_back(
        (it == of_seq_.end() ? Accepted{} : it->second).share(alpha(), kSequencePrior));
  }
  const std::vector<double> seconds = expected(times);
  size_t best = 0;
  double rate = 0;
  for (size_t i = 0; i < gammas_.size(); ++i) {
    const double now = chain_tokens(gammas_[i], alphas) / seconds[i];
    if (now > rate) rate = now, best = i;
  }
  return best;
}

int GammaChooser::choose(std::span<const int> seqs) {
  Times& times = times_of(seqs.size());
  const size_t middle = gammas_.size() / 2;
  // First plain steps and rounds of a middle number, of which one is not counted.
  for (const size_t i : {size_t{0}, middle})
    if (times.of[i].rounds < 2 && !times.of[i].is_borrowed) return gammas_[i];
  const size_t best = best_of(times, seqs);
  // Plain steps do not show what would be accepted: soon after they began rounds look more often.
  times.plain = best == 0 ? times.plain + 1 : 0;
  const bool looks = times.plain >= 4 && std::has_single_bit(static_cast<unsigned>(times.plain));
  if (++times.rounds % kProbeEvery != 0 && !looks) return gammas_[best];
  // In turns: the next larger, the next smaller, a plain step; of plain steps always a round.
  const int turn = times.probes++ % 3;
  if (best == 0) return gammas_[turn == 0 ? 1 : middle];
  if (turn == 0 && best + 1 < gammas_.size()) return gammas_[best + 1];
  return gammas_[turn == 2 ? 0 : best - 1];
}

void GammaChooser::observe(int gamma, size_t batch, double seconds,
                           std::span<const Tested> sequences) {
  for (const Tested& s : sequences) {
    all_.add(s, kBatchMemory);
    of_seq_[s.seq].add(s, kSequenceMemory);
  }
  Times& times = times_of(batch);
  Time& time = times.of[index_of(gamma)];
  if (const bool was_warm = std::exchange(time.is_warm, true); !was_warm || seconds <= 0) return;
  if (time.is_borrowed) {
    // The others of the other batch take as much longer here, or as much less.
    const double ratio = seconds / time.seconds;
    for (Time& t : times.of)
      if (t.is_borrowed) t.seconds *= ratio;
    time = {.seconds = seconds, .rounds = 1, .is_warm = true};
  } else if (time.rounds++ < kFirst) {
    time.seconds = time.rounds == 1 ? seconds : std::min(seconds, time.seconds);
  } else {
    time.seconds += kNew * (std::min(seconds, kLonger * time.seconds) - time.seconds);
  }
}

void GammaChooser::forget(int seq) { of_seq_.erase(seq); }

}  // namespace tandem::speculate
