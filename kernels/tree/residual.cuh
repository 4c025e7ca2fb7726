#pragma once
// The distribution of the next token at a node in the memory of a group of blocks: node_step.h with
// a token's weights in the thread that has it.
#include "kernels/sample/row_group.cuh"
#include "kernels/tree/node_step.h"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

/// A token's weights in the residual and in the proposal.
struct TokenWeights {
  uint64_t residual;
  float proposal;  // as Proposal's, the rest always filled in; a float holds it: it was one
};

/// What a token has in a proposal.
/// kept     weight that the draft's rule leaves it
/// whole    weight without cuts
__device__ inline float proposal_weight(uint64_t kept, uint64_t whole) {
  if (kept > 0) return static_cast<float>(static_cast<int64_t>(kept));
  return -static_cast<float>(static_cast<int64_t>(whole > 0 ? whole : 1));
}

/// Weights of the child to be tried next, published. Two take turns, as RowShared's words.
struct alignas(16) ResidualShared {
  TokenWeights child[2];
};

class RowResidual {
 public:
  /// low, high, proposal: room for a part each. Weights come first with set(i), then start().
  __device__ RowResidual(RowGroup& row, ResidualShared& shared, float* low, float* high,
                         float* proposal)
      : row_(row), shared_(shared), low_(low), high_(high), proposal_(proposal) {}

  __device__ void set(int i, TokenWeights w) {
    put(i, w.residual);
    proposal_[i] = w.proposal;
  }
  /// totals   of the weights: in the residual, of the tokens that the proposal keeps, of the rest
  __device__ void start(uint64_t total, uint64_t kept, uint64_t rest) {
    total_ = unit_ = total;
    left_ = kept;
    rest_ = rest;
    scales_ = is_pending_ = false;
    vote_ = votes_ = 0;
  }
  /// Between set() and start(): of a thread that meets the token of the first child.
  __device__ void publish(TokenWeights w) { *row_.own(&shared_.child[turn_]) = w; }

  /// After start(): the first child is to be tried.
  __device__ void first(int32_t token) {
    token_ = token;
    child_ = published(token);
  }

  /// What the first child is reached with, after first(), of a node that is itself reached with
  /// `reach`.
  __device__ Reach reach_of_first(ChildKind kind, double reach) const {
    const Scaled s = scaled(reach);
    return reach_in(s.unit, s.child, kind);
  }
  /// Makes the node one that is reached with less than certainty. Its weights change in the next
  /// pass, so that the total is known after scale() or reject().
  __device__ void reached(double reach) {
    scale_shift_ = shift_of(unit_);
    scale_ = reach;
    const Scaled s = scaled(reach);
    unit_ = s.unit;
    child_.residual = s.child;
    scales_ = true;
  }
  __device__ void scale() {
    uint64_t sum[1] = {0};
    row_.each<4>([&](int j) {
      const uint64_t w = weight_at<true>(j);
      put(j, w);
      sum[0] += w;
    });
    row_.totals(sum);
    total_ = sum[0];
    scales_ = false;
  }
  __device__ bool knows_total() const { return !scales_; }
  __device__ uint64_t total() const { return total_; }
  __device__ uint64_t unit() const { return unit_; }

  /// As of node_step.h, for the child to be tried.
  __device__ Reach reach_of(ChildKind kind) const { return reach_in(unit_, child_.residual, kind); }
  /// Whether a rejection of the child to be tried certainly leaves something of the unit: at least
  /// what the child's weight lacks of its share, but for the rounding of shares.
  __device__ bool leaves_something(Reach reach) const {
    return reach.share > reach.weight &&
           reach.share - reach.weight > unit_ << shift_of(unit_) >> 38;
  }
  /// The same. After it `next` is to be tried; -1: nothing is.
  template <bool kVotes = false>
  __device__ Rejection reject(ChildKind kind, int32_t next) {
    return kind == ChildKind::fixed ? reject_fixed(next) : reject_drawn<kVotes>(next);
  }

  /// As try_children of node_step.h. coin_of(i) gives the number that child i is tried with.
  template <class CoinOf>
  __device__ int try_children(const int32_t* children, int n, int n_drawn, CoinOf&& coin_of,
                              int& n_rounded) {
    first(children[0]);
    for (int i = 0; i < n; ++i) {
      const ChildKind kind = i < n_drawn ? ChildKind::drawn : ChildKind::fixed;
      const Reach reach = reach_of(kind);
      if (accepts(coin_of(i), reach.weight, reach.share)) return i;
      if (reject(kind, i + 1 < n ? children[i + 1] : -1).is_nothing() && reach.weight > 0) {
        ++n_rounded;
        return i;
      }
    }
    return n;
  }

  /// Draws from the residual; the token in one warp, else -1.
  __device__ int draw(double uniform) {
    settle();
    uint64_t mine = 0;
    row_.each<4>([&](int j) { mine += at(j); });
    return row_.find_first(
        mine, [&](int j) { return at(j); },
        [&](uint64_t total) { return weight_before(uniform, total); });
  }

  /// Adds to votes() in the next rejection of a drawn child, of which all threads then have the
  /// sum.
  __device__ void vote(uint64_t mine) { vote_ = mine; }
  __device__ uint64_t votes() const { return votes_; }

 private:
  struct Scaled {
    uint64_t unit, child;
  };
  /// Of a node as it begins.
  __device__ Scaled scaled(double reach) const {
    if (reach == 1.0) return {unit_, child_.residual};
    const int shift = shift_of(unit_);
    return {unit_ << shift, reached_weight(child_.residual, shift, reach)};
  }
  __device__ Reach reach_in(uint64_t unscaled, uint64_t weight, ChildKind kind) const {
    const int shift = shift_of(unscaled);
    const uint64_t unit = unscaled << shift;
    const bool is_fixed = kind == ChildKind::fixed;
    return {weight << shift, is_fixed ? unit : Shares(left_, rest_, unit).of(child_.proposal)};
  }

  template <bool kVotes>
  __device__ Rejection reject_drawn(int32_t next) {
    settle();
    const bool surely = leaves_something(reach_of(ChildKind::drawn));
    if (scales_)
      return surely ? reject_by_pass<true, true, kVotes>(next)
                    : reject_by_pass<false, true, kVotes>(next);
    return surely ? reject_by_pass<true, false, kVotes>(next)
                  : reject_by_pass<false, false, kVotes>(next);
  }

  /// kSurely  something is left: weights change in this pass, else once its sum is known
  template <bool kSurely, bool kScales, bool kVotes>
  __device__ Rejection reject_by_pass(int32_t next) {
    const int shift = shift_of(unit_);
    const uint64_t unit = unit_ << shift;
    const Shares shares(left_, rest_, unit);
    constexpr int kBefore = 1, kVote = kScales ? 2 : 1;
    uint64_t sum[1 + kScales + kVotes] = {0};  // of the remainder, the weights before, and votes
    if constexpr (kVotes) sum[kVote] = vote_;
    row_.each<4>([&](int j) {
      const uint64_t w = weight_at<kScales>(j);
      const uint64_t rest = excess(w << shift, shares.of(proposal_[j]));
      sum[0] += rest;
      if constexpr (kScales) sum[kBefore] += w;
      if constexpr (kSurely || kScales) put(j, kSurely ? rest : w);
    });
    const int mine = token_ - row_.first(), other = next - row_.first();
    if (row_.is_mine(other)) publish({at(other), proposal_[other]});
    if (kSurely && row_.is_mine(mine)) proposal_[mine] = 0;
    row_.totals(sum);
    uint64_t total = total_;
    if constexpr (kScales) total = sum[kBefore];
    const Rejection rejection{unit - ((total << shift) - sum[0]), unit};
    const bool takes = kSurely || !rejection.is_nothing();
    total_ = takes ? sum[0] : total;
    if (takes) unit_ = rejection.left;
    if (child_.proposal > 0)
      left_ -= static_cast<uint64_t>(child_.proposal);
    else
      rest_ -= static_cast<uint64_t>(-child_.proposal);
    if constexpr (kVotes) votes_ = sum[kVote];
    scales_ = false;
    is_pending_ = !kSurely && takes;
    if (is_pending_) {
      pending_ = shares;
      pending_shift_ = shift;
      removed_ = token_;
    } else if (!kSurely) {
      if (row_.is_mine(mine)) proposal_[mine] = 0;
      __syncthreads();  // the next node's row may take this place at once
    }
    if (next >= 0) go_on(next);
    return rejection;
  }

  /// Without a pass: only that token's weight changes.
  __device__ Rejection reject_fixed(int32_t next) {
    const uint64_t taken = child_.residual;
    const Rejection rejection{unit_ - taken, unit_};
    const bool takes = !rejection.is_nothing() && taken != 0;
    if (takes) {
      total_ -= taken;
      unit_ -= taken;
    }
    const int mine = token_ - row_.first(), other = next - row_.first();
    if (takes && row_.is_mine(mine)) put(mine, 0);
    if (next < 0) return rejection;
    if (row_.is_mine(other)) publish({at(other), proposal_[other]});
    row_.sync();
    go_on(next);
    return rejection;
  }

  __device__ void go_on(int32_t next) {
    first(next);
    if (is_pending_) child_.residual = rest_of(child_);
  }

  __device__ uint64_t at(int i) const {
    return uint64_t{__float_as_uint(high_[i])} << 32 | __float_as_uint(low_[i]);
  }
  __device__ void put(int i, uint64_t w) {
    low_[i] = __uint_as_float(static_cast<uint32_t>(w));
    high_[i] = __uint_as_float(static_cast<uint32_t>(w >> 32));
  }
  __device__ uint64_t rest_of(TokenWeights w) const {
    return excess(w.residual << pending_shift_, pending_.of(w.proposal));
  }
  /// A token's weight, after the node's own reach.
  template <bool kScales>
  __device__ uint64_t weight_at(int i) const {
    return kScales ? reached_weight(at(i), scale_shift_, scale_) : at(i);
  }
  /// Updates the weights by a rejection of which it was known too late that it leaves something.
  __device__ void settle() {
    if (!is_pending_) return;
    row_.each<4>([&](int j) { put(j, rest_of({at(j), proposal_[j]})); });
    const int mine = removed_ - row_.first();
    if (row_.is_mine(mine)) proposal_[mine] = 0;
    is_pending_ = false;
  }
  /// The weights that the block with a token published, once all blocks have met.
  __device__ TokenWeights published(int32_t token) {
    const TokenWeights w = *row_.peer(&shared_.child[turn_], row_.owner(token));
    turn_ ^= 1;
    return w;
  }

  RowGroup& row_;
  ResidualShared& shared_;
  float *low_, *high_, *proposal_;
  uint64_t total_ = 0, unit_ = 0, left_ = 0, rest_ = 0;  // as Residual's and Proposal's
  TokenWeights child_{0, 0};                             // of the token to be tried
  int32_t token_ = -1, removed_ = -1;
  uint64_t vote_ = 0, votes_ = 0;
  double scale_ = 1;
  int scale_shift_ = 0;
  bool scales_ = false, is_pending_ = false;
  Shares pending_{0, 1, 0};
  int pending_shift_ = 0;
  int turn_ = 0;
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
