#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decode/sampler.h"
#include "kernels/page/catch_up.h"
#include "kernels/tree/draw_children.h"
#include "kernels/tree/grow_beams.h"
#include "kernels/tree/verify_trees.h"
#include "kv/paged_store.h"
#include "kv/step.h"
#include "speculate/round/round_results.h"
#include "speculate/round/verify_choice.h"
#include "speculate/tree/tree_room.h"
#include "tensor/courier.h"

namespace tandem::speculate {

/// The trees of one round, one for each sequence of a batch and all of one shape, where the target
/// computes: what the host says of them, the tokens proposed, what children were drawn from, and
/// what verification found. On a GPU one copy brings all that the host says and another brings the
/// results; arrays keep their addresses in all rounds of one shape for as many places, for graphs.
/// A round may begin before the work of the one ahead of it is done: how that one ends stays on the
/// device too, and moves this one's sequences on.
/// Its proposals may be chains that come out of rounds within it (round_within.cpp), one after the
/// other with one layout: each keeps tokens that count as text for the next, which moves on by them
/// as rounds do that are ahead, and that are proposals for the round around.
/// layout   [places, ...]: places without a sequence hold a lone root. Nodes as in TokenTree
class Round {
 public:
  struct Bounds {
    std::string name = "speculation";  // of its items in a memory plan
    int max_seqs = 0;
    TreeRoom tree = {};
    int max_tokens = 0;       // of one sequence, where its tokens are asked for
    size_t outbox_bytes = 0;  // what the forwards of a round send along
    int vocab = 0;
    bool draws = false;     // children, by draw_children or grow_beams
    int beams = 0;          // nodes of a level that grow_beams keeps, at most; 0: it is not used
    bool ahead = false;     // rounds may begin before the last one is over
    int rounds_within = 0;  // that lengthen its chains, at most
    int chain_around = 0;   // nodes of the chains that it lengthens; 0: it is within no round
    int turns = 1;          // rounds one after the other with one layout, within another
    /// Whether proposals are found in the text, by look_up.
    bool reads_text = false;
    cuda::Gpu gpu = {};

    bool draws_any() const { return draws && tree.parents > 0; }
  };
  using Moment = RoundResults::Moment;
  using enum RoundResults::Moment;

  static void plan(const Bounds& bounds, Device device, MemoryPlan& plan);
  /// What rounds within another one send with it.
  static size_t outbox_bytes_within(const Bounds& bounds);
  /// around   that the rounds are within, if they are; outlives this
  Round(const Bounds& bounds, Arena& arena, const Exec& exec, Round* around = nullptr);

  // On the host, before the round's work:

  /// No round is under way; the next one follows none.
  void restart();
  /// Begins a round, which must not be before the one ahead of the last is over.
  /// prior   [seqs] places in the last round, where that is not over and its tokens are not among
  ///          those of the sequence; -1: all are known. Empty: of all sequences
  /// tree     its shape; stays where it is
  /// places   at least as many as sequences
  void begin(std::span<const decode::DrawSeq> seqs, std::span<const int> prior,
             const decode::SamplerSpec& sampler, const TokenTree& tree, int places);
  /// Begins the rounds within the round around them, which has begun, of the same sequences and
  /// places: what the host says of them goes along with that.
  void begin_within(const TokenTree& tree);
  bool is_within() const { return around_ != nullptr; }
  /// Rounds that are laid out at once: one, or all within the one around them.
  int turns() const { return bounds_.turns; }
  /// Those that it began with; theirs to read until the round's work is on the queue.
  std::span<const decode::DrawSeq> seqs() const { return seqs_; }
  int places() const { return places_; }
  const TokenTree& tree() const { return *tree_; }
  int64_t seed() const { return sampler_.seed; }
  Outbox& outbox() { return *outbox_; }
  /// Tokens of sequence b, the root's set, the others to be proposed here or by work.
  std::span<int32_t> host_tokens(size_t b) { return of_tree(tokens_.host, b); }
  bool may_be_ahead() const { return bounds_.ahead; }
  /// Tokens that the last round may add to a sequence that is in it too, and rounds within the same
  /// one before; 0: none is.
  int most_pending() const { return most_pending_; }
  /// Chains are lengthened by rounds within this one, each until it has `enough` tokens.
  void grow(int enough);
  /// Rows of the round's forwards that follow the sequences' lengths.
  void follow(std::span<const kv::Step> steps);
  /// The newest tokens of the sequences, as a forward takes them: n of each, kNewestTokens at most.
  /// limit    ids from this one on become 0
  void follow(const Mirrored<int32_t>& unread, int n, int limit);
  /// Leaves sequence b the first n nodes of a chain.
  void shorten(size_t b, int n);
  /// Leaves sequence b the levels of its tree down to this depth: nodes below them are not
  /// accepted. After the drafter's `prepare`.
  void limit(size_t b, int depth);
  /// Nodes of sequence b that simulated acceptance takes in place of what verification finds, of a
  /// chain that grows those that are there; for every sequence of a round, or for none.
  /// turn     of rounds within another: which of them
  void force(size_t b, std::span<const int> path, int turn = 0);

  // Work; graphs may record it:

  /// Brings what the host said to the device, and there up to date.
  void send();
  /// Of rounds within another: the turn-th begins, after the one before it.
  void enter(int turn);
  /// What it keeps becomes part of the proposals of the round around it.
  /// shapes   logits [places * nodes, vocab] of the verifier
  /// is_last  no other follows within the same round
  void append(const Tensor& logits, bool is_last);
  /// On the CPU, after it: whether sequence b had too few tokens until then.
  bool took_part(size_t b) const {
    return around_->taken_.device[turn_ * places_ + static_cast<int>(b)] >= 0;
  }
  /// Writes the time when the work so far is done.
  void mark(Moment moment);
  const int32_t* tokens() const { return tokens_.device; }
  /// Tokens of a level's nodes, place by place.
  /// limit    ids from this one on become 0, those of a target that the draft lacks
  const int32_t* level_ids(int level, int limit);
  /// Rows of the level's forward that have children, where its nodes are all the rows.
  /// shapes   [level_logits(level).rows()]
  const int32_t* level_rows(int level) const { return levels_[static_cast<size_t>(level)].row; }
  /// Of rounds within another: proposes what followed the last tokens of each text before, those
  /// that rounds kept so far included.
  /// longest  tokens that must agree, at most
  void look_up(int longest);
  /// Where the logits go that the level's children are drawn from.
  /// shapes   [*, vocab] f32
  Tensor level_logits(int level) const;
  /// Draws the children of the level's nodes without replacement from level_logits, by the rule of
  /// the sampler, as verification takes them to be drawn.
  /// errors   on the CPU kind numeric: a row without meaning
  void draw_children(int level);
  /// In place of it, of a beam_tree: the level's nodes get the best children of all together, as
  /// kernels/tree/grow_beams.h says, and the forwards that `follow` took their masks.
  /// temperature   of the scores
  /// errors   on the CPU kind numeric: a row without meaning
  void grow_beams(int level, float temperature);
  /// Walks the trees of places [first, first + n) and finds the accepted paths.
  /// shapes   logits [n * nodes, vocab]
  void verify(const Tensor& logits, const AcceptRule& rule, int first);
  /// What that reads and writes.
  VerifyTreesParams verification(const Tensor& logits, const AcceptRule& rule, int first = 0) const;
  /// Puts simulated paths, if there are any, in place of those found.
  void impose();
  /// The accepted paths, for the moves of their keys; nodes from n_held on have none.
  kv::PagedStore::AcceptedPaths paths(int n_held) const;
  /// Brings the results to the host and ends the round.
  void fetch();

  size_t n_seqs() const { return n_drafted_.size(); }
  /// Where the round's results will be.
  RoundResults results() const;

 private:
  /// Of a level whose nodes have children.
  struct Level {
    int n_nodes = 0, n_parents = 0;     // of all places
    int first_logits = 0;               // row where level_logits begin
    const int32_t* token = nullptr;     // [n_nodes] where in the tokens
    const int32_t* row = nullptr;       // [n_parents] of the level's nodes
    const ParentRow* parent = nullptr;  // [n_parents]
  };

  void lay_out_sequences(std::span<const int> prior);
  void send_seen();
  /// Of a forward whose rows, the last of each sequence, are the nodes from this one on.
  BeamMasks masks_of(const kv::Step& step, int first_node) const;
  /// Tokens of room after each text, for those that rounds within another keep.
  int seen_room() const { return std::max(bounds_.chain_around - 1, 0); }
  /// For rules that ask for the sequences' tokens.
  const int32_t* penalized() const { return sampler_.rule.needs_seen() ? seen_ : nullptr; }
  void lay_out_levels();
  template <class T>
  std::span<T> of_tree(T* nodes, size_t b) const {
    const auto n = static_cast<size_t>(tree_->size());
    return {nodes + b * n, n};
  }
  void lay_out(std::span<const int> prior);
  void take_results(Outbox::Part at);
  void catch_up(const RoundEnds& ends, const int32_t* prior);
  RoundNumbers numbers() const;
  size_t n_forced() const;  // numbers of one turn
  /// How long a turn's simulated paths are, which stand after them.
  int32_t* forced_counts(int32_t* paths) const;

  Bounds bounds_;
  Exec exec_;
  Round* around_;
  std::optional<Courier> courier_;  // of the round around all others
  Courier seen_courier_;
  RoundEnds ends_;                  // of the last round
  int32_t* ids_ = nullptr;          // [max_seqs * widest level]
  Tensor draft_logits_;             // [max_seqs * parents, vocab] where children are drawn
  std::vector<RowSum> draft_sums_;  // [max_seqs * parents], empty on a GPU
  double* beam_scores_ = nullptr;   // [max_seqs * beams] of a level, and a workspace
  void* rows_ = nullptr;            // workspace of kernels that draw and verify, on a GPU
  std::byte* results_ = nullptr;    // of rounds within another
  // Of the round:
  std::span<const decode::DrawSeq> seqs_;
  decode::SamplerSpec sampler_;
  const TokenTree* tree_ = nullptr;
  int places_ = 0;
  std::vector<int> n_drafted_;
  bool is_forced_ = false, grows_ = false;
  int most_pending_ = 0;
  int turn_ = 0;  // within the round around it
  int n_steps_ = 0;
  Mirrored<int32_t> unread_;  // of a draft
  int n_unread_ = 0, unread_limit_ = 0;
  std::vector<Level> levels_;
  std::vector<BeamMasks> masks_;  // of the forwards, where beams grow
  Outbox* outbox_ = nullptr;
  // Sent, [places] or [places, nodes]:
  Mirrored<uint64_t> seed_;                           // [1]
  Mirrored<int32_t> sequence_, position_;             // names of random numbers
  Mirrored<int32_t> prior_;                           // place in the last round
  Mirrored<int32_t> newest_;                          // [places, kNewestTokens] of the text
  Mirrored<int32_t> enough_, most_;                   // tokens of chains that grow
  Mirrored<StepRows> steps_;                          // [n_steps_ <= levels] of its forwards
  Mirrored<int32_t> node_begin_, seen_begin_;         // [places + 1]
  Mirrored<int32_t> first_child_, n_children_, row_;  // row: of the target's logits
  Mirrored<int32_t> draft_row_;                       // of the draft's, -1 for leaves
  Mirrored<int32_t> parent_;                          // in the tree
  Mirrored<int32_t> forced_;                          // of each turn: places' nodes, then how many
  Mirrored<int32_t> tokens_;                          // sent, completed by work, and fetched
  int32_t* seen_ = nullptr;  // the sequences' tokens, where a rule or the drafter asks for them
  // Fetched:
  Mirrored<int32_t> path_, n_accepted_, bonus_, n_rounded_;
  Mirrored<float> logprobs_;
  Mirrored<uint64_t> clock_;  // [n_moments] ns
  // Of rounds within it:
  Mirrored<int32_t> length_;   // [places] tokens of chains that grow
  Mirrored<int32_t> taken_;    // [rounds_within, places]
  Mirrored<int32_t> found_;    // [rounds_within, places] tokens that look_up proposed
  Mirrored<uint64_t> clocks_;  // [rounds_within, n_moments]
  size_t fetched_bytes_ = 0;
};

}  // namespace tandem::speculate
