#pragma once
// The loading warp of few_rows_mma.cuh, and what it tells the working warps.
#include "kernels/attention/few_rows_state.cuh"
#include "kernels/attention/visibility.cuh"
#include "kernels/cuda/tma.cuh"

namespace tandem {
namespace mma_detail {

/// Position in a ring.
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ void next(int stages, int step = 1) {
    stage += step;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
};

/// A chunk as the loading warp describes it to the others: they keep nothing of the division
/// themselves.
struct Item {
  SeqView v;
  Chunk k;
  int n_queries;
  bool other_queries;  // than the item before
  bool end;            // nothing comes any more
};

/// What the warps of a block share besides the ring itself.
template <class Shape>
struct Mailbox {
  static constexpr int kItems = 8;
  cuda::Barrier full[Shape::kMaxStages], empty[Shape::kMaxStages];
  cuda::Barrier item_full[kItems], item_empty[kItems];
  int first[Shape::kMaxStages];  // slot of a unit's first key, ~slot if all rows see all its keys
  Item items[kItems];
};

/// The loading warp: walks through the block's chunks, describes each and brings its units.
template <class Shape>
class Loader {
 public:
  __device__ Loader(const FewRowsCall& call, Mailbox<Shape>& mail, unsigned char* ring, int stages,
                    const CUtensorMap& k_map, const CUtensorMap& v_map)
      : call_(call),
        p_(call.params),
        mail_(mail),
        ring_(ring),
        stages_(stages),
        lane_(static_cast<int>(threadIdx.x) % cuda::kWarp),
        k_map_(k_map),
        v_map_(v_map),
        // Tiles of one pair come one after the other: only with one tile are pages read once.
        policy_(call.rule.max_tiles == 1 ? cuda::read_once_policy() : cuda::read_again_policy()) {}

  __device__ void run() {
    ChunkWalk walk(p_, call_.rule);
    bool more = walk.valid();
    SeqView v{};
    Chunk k{};
    int pages = 0;
    if (more) {
      v = walk.seq(), k = walk.chunk();
      pages = page_of(v, k, k.begin);
    }
    while (more) {
      describe(v, k);
      // The next chunk's pages are looked up while this one's units come: the ring must not run
      // dry.
      walk.next();
      more = walk.valid();
      SeqView next_v{};
      Chunk next_k{};
      int next_pages = 0;
      if (more) {
        next_v = walk.seq(), next_k = walk.chunk();
        next_pages = page_of(next_v, next_k, next_k.begin);
      }
      load(v, k, pages);
      v = next_v, k = next_k, pages = next_pages;
    }
    wait_for_item();
    if (lane_ == 0) {
      mail_.items[item_.stage].end = true;
      mail_.item_full[item_.stage].arrive();
    }
  }

 private:
  __device__ void wait_for_item() { mail_.item_empty[item_.stage].wait(item_.parity ^ 1); }

  __device__ void describe(const SeqView& v, const Chunk& k) {
    const int group = p_.n_heads / p_.n_kv_heads, first_query = k.tile * Shape::kQueries;
    const int n_queries = min(v.n_rows * group - first_query, Shape::kQueries);
    row_begin_ = first_query / group;
    row_last_ = (first_query + n_queries - 1) / group;
    wait_for_item();
    if (lane_ == 0) {
      mail_.items[item_.stage] = {
          .v = v,
          .k = k,
          .n_queries = n_queries,
          .other_queries = k.seq != seq_ || k.kv_head != kv_head_ || k.tile != tile_,
          .end = false};
      mail_.item_full[item_.stage].arrive();
    }
    seq_ = k.seq, kv_head_ = k.kv_head, tile_ = k.tile;
    item_.next(Mailbox<Shape>::kItems);
  }

  /// This lane's page of the 32 from the chunk's page `first` on.
  __device__ int page_of(const SeqView& v, const Chunk& k, int first) const {
    const int i = first + lane_;
    return i < k.end ? p_.page_table[static_cast<int64_t>(k.seq) * p_.max_pages + v.pages.page(i)]
                     : 0;
  }

  /// Brings a chunk; `mine` is page_of its first page.
  __device__ void load(const SeqView& v, const Chunk& k, int mine) {
    for (int i = k.begin; i < k.end; i += cuda::kWarp) {
      const int ahead = page_of(v, k, i + cuda::kWarp);
      const int n = min(cuda::kWarp, k.end - i);
#pragma unroll 1
      for (int j = 0; j < n; ++j) {
        const int page = __shfl_sync(cuda::kAllLanes, mine, j);
        // A released page becomes zeros: its rows lie outside the tensor.
        const int row = page < 0 ? -kPageTokens : (page * p_.n_kv_heads + k.kv_head) * kPageTokens;
#pragma unroll 1
        for (int unit = 0; unit < Shape::kUnits; ++unit) {
          if (lane_ == 0)
            bring(v, row + unit * Shape::kKeys,
                  v.pages.page(i + j) * kPageTokens + unit * Shape::kKeys);
          at_.next(stages_);
        }
      }
      __syncwarp();
      mine = ahead;
    }
  }

  __device__ void bring(const SeqView& v, int row, int first) {
    const bool all = all_visible(p_, v, row_begin_, row_last_, first, Shape::kKeys);
    cuda::Barrier& full = mail_.full[at_.stage];
    unsigned char* to = ring_ + at_.stage * 2 * Shape::kUnitBytes;
    mail_.empty[at_.stage].wait(at_.parity ^ 1);
    mail_.first[at_.stage] = all ? ~first : first;
    full.arrive_expecting(2 * Shape::kUnitBytes);
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half) {
      cuda::tma_load(to + half * Shape::kHalfBytes, k_map_, full, half * 64, row, policy_);
      cuda::tma_load(to + Shape::kUnitBytes + half * Shape::kHalfBytes, v_map_, full, half * 64, row,
                     policy_);
    }
  }

  const FewRowsCall& call_;
  const AttentionParams& p_;
  Mailbox<Shape>& mail_;
  unsigned char* ring_;
  int stages_, lane_;
  const CUtensorMap &k_map_, &v_map_;
  uint64_t policy_;
  int seq_ = -1, kv_head_ = 0, tile_ = 0, row_begin_ = 0, row_last_ = 0;
  RingPlace at_, item_;
};

}  // namespace mma_detail
}  // namespace tandem
