#pragma once
// The distribution of the next token at a node in the memory of a group of blocks: node_step.h with
// a token's weights in the thread that has it.
#include "kernels/sample/row_group.cuh"
#include "kernels/tree/node_step.h"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

/// A token's weights in the residual and in the proposal.
struct TokenWeights {
  uint64_t residual;
  float proposal;  // as Proposal's; a float holds it: it was one
};

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
  /// totals   of the weights
  __device__ void start(uint64_t residual, uint64_t proposal, int vocab) {
    total_ = residual;
    left_ = proposal;
    n_untried_ = vocab;
    is_pending_ = false;
    removed_ = -1;
  }
  /// Between set() and start(): of a thread that meets the token of the first child.
  __device__ void publish(TokenWeights w) { *row_.own(&shared_.child[turn_]) = w; }

  /// As try_children of node_step.h. coin_of(i) gives the number that child i is tried with.
  template <class CoinOf>
  __device__ int try_children(const int32_t* children, int n, CoinOf&& coin_of, int& n_rounded) {
    TokenWeights child = published(children[0]);
    for (int i = 0; i < n; ++i) {
      const int shift = shift_of(total_);
      const uint64_t scaled = total_ << shift, weight = child.residual << shift;
      const Shares shares(left_, n_untried_, scaled);
      if (accepts(coin_of(i), weight, shares.of(child.proposal))) return i;
      const int next = i + 1 < n ? children[i + 1] : -1;
      uint64_t sum[1] = {0};
      row_.each([&](int j) {
        const TokenWeights w = settle(j);
        if (row_.first() + j == next) publish(w);
        sum[0] += excess(w.residual << shift, shares.of(w.proposal));
      });
      row_.totals(sum);
      const bool rounded = is_nothing(sum[0], scaled);
      if (rounded && weight > 0) {
        ++n_rounded;
        return i;
      }
      is_pending_ = !rounded;
      if (is_pending_) {
        pending_ = shares;
        pending_shift_ = shift;
        total_ = sum[0];
      }
      left_ -= static_cast<uint64_t>(child.proposal);
      removed_ = children[i];
      --n_untried_;
      if (next >= 0) {
        child = published(next);
        if (is_pending_) child.residual = rest_of(child);
      }
    }
    return n;
  }

  /// Draws from the residual; the token in one warp, else -1.
  __device__ int draw(double uniform) {
    uint64_t mine = 0;
    row_.each([&](int j) { mine += settle(j).residual; });
    return row_.find_first(
        mine, [&](int j) { return at(j); },
        [&](uint64_t total) { return weight_before(uniform, total); });
  }

 private:
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
  /// Updates a token's weights by the last rejection. Until its sum was known the rejection might
  /// not have happened, so the weights stay as they were until the next pass.
  __device__ TokenWeights settle(int i) {
    TokenWeights w{at(i), proposal_[i]};
    if (is_pending_) put(i, w.residual = rest_of(w));
    if (row_.first() + i == removed_) proposal_[i] = w.proposal = 0;
    return w;
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
  uint64_t total_ = 0, left_ = 0;
  int n_untried_ = 0, removed_ = -1;
  bool is_pending_ = false;
  Shares pending_{0, 1, 0};
  int pending_shift_ = 0;
  int turn_ = 0;
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
