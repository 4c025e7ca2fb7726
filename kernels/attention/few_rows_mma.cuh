#pragma once
// Attention of few rows in bf16 with head_dim 64 or 128. One warp brings K and V into a ring in
// shared memory, in units of 16 KiB; the others multiply. A working warp takes 16 queries and every
// kParts-th unit: large enough to keep one warp busy without waiting on its own results, and warps
// meet only when a chunk ends.
#include <algorithm>

#include "kernels/attention/few_rows_state.cuh"
#include "kernels/attention/visibility.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/overlap.cuh"

namespace tandem {

template <int kDim, int kQueryTiles>
struct MmaShape {
  static constexpr int kQueries = 16 * kQueryTiles;
  static constexpr int kParts = kQueryTiles == 4 ? 2 : 4;  // warps that take turns on the units
  static constexpr int kWarps = kQueryTiles * kParts;
  static constexpr int kWorkers = kWarps * cuda::kWarp;
  static constexpr int kThreads = kWorkers + cuda::kWarp;
  static constexpr int kKeys = 64 * 64 / kDim;        // of a unit
  static constexpr int kUnits = kPageTokens / kKeys;  // of a page
  static constexpr int kHalves = kDim / 64;           // columns come by 64: rows of 128 bytes
  static constexpr int kHalfBytes = kKeys * 128;
  static constexpr int kUnitBytes = kHalves * kHalfBytes;  // of K, and of V
  static constexpr int kPitch = kDim + 8;  // floats: eight rows then fall into different banks
  // A stage belongs to one part, which thus sees all its phases: stages are a multiple of parts.
  static constexpr int kMaxStages = 12;
};

constexpr unsigned kRingAlign = 1024;

/// How a block's shared memory is laid out: the ring, then parts' o, then their m and l.
struct MmaMemory {
  int stages, o_bytes, total_bytes;
};

/// As many stages as fit beside the rest.
template <class Shape>
MmaMemory mma_memory(const SplitRule& rule) {
  // 227 KiB of a block less what it has besides: barriers, and the weights of a join.
  constexpr int kLimit = 227 * 1024 - 6 * 1024 - static_cast<int>(kRingAlign);
  MmaMemory m{};
  m.o_bytes = rule.queries * Shape::kParts * Shape::kPitch * static_cast<int>(sizeof(float));
  const int rest = m.o_bytes + rule.queries * Shape::kParts * static_cast<int>(sizeof(float2));
  m.stages = std::min((kLimit - rest) / (2 * Shape::kUnitBytes), Shape::kMaxStages);
  m.stages = m.stages / Shape::kParts * Shape::kParts;
  m.total_bytes = m.stages * 2 * Shape::kUnitBytes + rest + static_cast<int>(kRingAlign);
  return m;
}

namespace mma_detail {

template <int kDim, int kQueryTiles>
class Worker {
  using Shape = MmaShape<kDim, kQueryTiles>;
  static constexpr int kKeyTiles = Shape::kKeys / 8, kDimTiles = kDim / 8, kSteps = kDim / 16;

 public:
  __device__ Worker(const AttentionParams& p, int warp)
      : p_(p),
        lane_(threadIdx.x % cuda::kWarp),
        tile_(warp % kQueryTiles),
        to_log2_(p.scale * 1.44269504088896341f) {
    // Rows of 128 bytes: piece i of 16 bytes lies at i ^ (row % 8). A lane's row is the same modulo
    // 8 in all its loads, so further pieces are reached by xor into its address.
    const int in_tile = lane_ % 8, which = lane_ / 8;
    k_offset_ = (which / 2 * 8 + in_tile) * 128 + ((which % 2) ^ in_tile) * 16;
    v_offset_ = (which % 2 * 8 + in_tile) * 128 + ((which / 2) ^ in_tile) * 16;
  }

  /// Loads the queries of a pair; rows behind the last one are zero.
  __device__ void load_queries(const SeqView& v, const Chunk& k, int first_query, int n_queries) {
    const int group = p_.n_heads / p_.n_kv_heads, t = lane_ % 4;
    live_ = tile_ * 16 < n_queries;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = tile_ * 16 + half * 8 + lane_ / 4, query = first_query + in_tile;
      row_[half] = min(query / group, v.n_rows - 1);
      const int64_t at = static_cast<int64_t>(v.first_row + row_[half]) * p_.n_heads +
                         k.kv_head * group + query % group;
      const uint32_t* q =
          reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(p_.q) + at * kDim);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        q_[step][half] = in_tile < n_queries ? q[step * 8 + t] : 0;
        q_[step][half + 2] = in_tile < n_queries ? q[step * 8 + t + 4] : 0;
      }
    }
  }

  __device__ void begin() {
#pragma unroll
    for (int half = 0; half < 2; ++half) m_[half] = -INFINITY, l_[half] = 0;
#pragma unroll
    for (int i = 0; i < kDimTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) o_[i][e] = 0;
  }

  /// One unit in shared memory, whose keys start at slot `first`; kMasked: some row may not see
  /// some.
  template <bool kMasked>
  __device__ void unit(uint32_t k_unit, uint32_t v_unit, const SeqView& v, int first) {
    if (!live_) return;
    float s[kKeyTiles][4];
    scores(s, k_unit);
    if constexpr (kMasked) {
      // Of four lanes with the same two rows, even ones work out the first row's keys, odd ones the
      // second's.
      const int page = first / kPageTokens * kPageTokens;
      const uint64_t mine = visible_slots(p_, v, lane_ % 2 == 0 ? row_[0] : row_[1], page);
      const uint64_t other = __shfl_xor_sync(cuda::kAllLanes, mine, 1);
      const int shift = first - page + lane_ % 4 * 2;
      const uint64_t see[2] = {(lane_ % 2 == 0 ? mine : other) >> shift,
                               (lane_ % 2 == 0 ? other : mine) >> shift};
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (((see[e / 2] >> (i * 8 + e % 2)) & 1) == 0) s[i][e] = -INFINITY;
    }
    exponentials(s);
    values<kMasked>(s, v_unit, v.base + v.n_rows - first);
  }

  /// Leaves the state in shared memory.
  __device__ void put(const PartStates& to, int part, int n_queries) {
    if (!live_) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile_ * 16 + half * 8 + lane_ / 4, t = lane_ % 4;
      float l = l_[half];
      l += __shfl_xor_sync(cuda::kAllLanes, l, 1);
      l += __shfl_xor_sync(cuda::kAllLanes, l, 2);
      if (query >= n_queries) continue;
      const int at = part * to.queries + query;
      if (t == 0) to.ml[at] = {m_[half] * to_log2_, l};
      float* o = to.o + at * to.pitch + t * 2;
#pragma unroll
      for (int i = 0; i < kDimTiles; ++i)
        *reinterpret_cast<float2*>(o + i * 8) = {o_[i][half * 2], o_[i][half * 2 + 1]};
    }
  }

 private:
  __device__ void scores(float (&s)[kKeyTiles][4], uint32_t k_unit) const {
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][e] = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t k[4];
        cuda::load_tiles(k, ((k_unit + k_offset_) ^ (step % 4 * 32)) +
                                step / 4 * Shape::kHalfBytes + pair * 2048);
        cuda::mma_bf16(s[pair * 2], q_[step], k[0], k[1]);
        cuda::mma_bf16(s[pair * 2 + 1], q_[step], k[2], k[3]);
      }
  }

  /// Scores become 2^(score - m), after m, l and o have moved to the new maximum.
  __device__ void exponentials(float (&s)[kKeyTiles][4]) {
    float most[2] = {m_[0], m_[1]};
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) most[e / 2] = fmaxf(most[e / 2], s[i][e]);
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(cuda::kAllLanes, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(cuda::kAllLanes, most[half], 2));
      base[half] = most[half] == -INFINITY ? 0.0f : most[half] * to_log2_;
    }
    if (__any_sync(cuda::kAllLanes, most[0] > m_[0] || most[1] > m_[1])) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shrink = cuda::exp2_fast(fmaf(m_[half], to_log2_, -base[half]));
        l_[half] *= shrink;
#pragma unroll
        for (int i = 0; i < kDimTiles; ++i)
          o_[i][half * 2] *= shrink, o_[i][half * 2 + 1] *= shrink;
        m_[half] = most[half];
      }
    }
#pragma unroll
    for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[i][e] = cuda::exp2_fast(fmaf(s[i][e], to_log2_, -base[e / 2]));
        l_[e / 2] += s[i][e];
      }
  }

  /// Adds the values, weighted. Rows of the unit from `written` on were never written and may hold
  /// NaN, which a weight of zero would not remove.
  template <bool kMasked>
  __device__ void values(const float (&s)[kKeyTiles][4], uint32_t v_unit, int written) {
#pragma unroll
    for (int step = 0; step < Shape::kKeys / 16; ++step) {
      const uint32_t p[4] = {cuda::pack_bf16(s[step * 2][0], s[step * 2][1]),
                             cuda::pack_bf16(s[step * 2][2], s[step * 2][3]),
                             cuda::pack_bf16(s[step * 2 + 1][0], s[step * 2 + 1][1]),
                             cuda::pack_bf16(s[step * 2 + 1][2], s[step * 2 + 1][3])};
      uint32_t keep[2];
      if constexpr (kMasked) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = step * 16 + i * 8 + lane_ % 4 * 2;
          keep[i] = key + 1 < written ? 0xffffffffu : (key < written ? 0x0000ffffu : 0u);
        }
      }
#pragma unroll
      for (int dims = 0; dims < kDim / 16; ++dims) {
        uint32_t v[4];
        cuda::load_tiles_transposed(v, ((v_unit + v_offset_) ^ (dims % 4 * 32)) +
                                           dims / 4 * Shape::kHalfBytes + step * 2048);
        if constexpr (kMasked) {
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] &= keep[i % 2];
        }
        cuda::mma_bf16(o_[dims * 2], p, v[0], v[1]);
        cuda::mma_bf16(o_[dims * 2 + 1], p, v[2], v[3]);
      }
    }
  }

  const AttentionParams& p_;
  int lane_, tile_;
  float to_log2_;                 // from products to exponents of 2
  uint32_t k_offset_, v_offset_;  // of a lane's first load in a unit
  bool live_ = false;             // whether any of the warp's queries exists
  int row_[2];                    // of the queries lane / 4 and 8 further
  uint32_t q_[kSteps][4];
  float m_[2], l_[2], o_[kDimTiles][4];
};

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
  cuda::SharedBarrier full[Shape::kMaxStages], empty[Shape::kMaxStages];
  cuda::SharedBarrier item_full[kItems], item_empty[kItems];
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
    for (ChunkWalk walk(p_, call_.rule); walk.valid(); walk.next()) {
      const Chunk k = walk.chunk();
      describe(walk.seq(), k);
      load(walk.seq(), k);
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

  __device__ void load(const SeqView& v, const Chunk& k) {
    const int32_t* table = p_.page_table + static_cast<int64_t>(k.seq) * p_.max_pages;
    for (int i = k.begin; i < k.end; i += cuda::kWarp) {
      const int mine = i + lane_ < k.end ? table[v.pages.page(i + lane_)] : 0;
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
    }
  }

  __device__ void bring(const SeqView& v, int row, int first) {
    const bool all = all_visible(p_, v, row_begin_, row_last_, first, Shape::kKeys);
    cuda::SharedBarrier& full = mail_.full[at_.stage];
    unsigned char* to = ring_ + at_.stage * 2 * Shape::kUnitBytes;
    mail_.empty[at_.stage].wait(at_.parity ^ 1);
    mail_.first[at_.stage] = all ? ~first : first;
    full.arrive_expecting(2 * Shape::kUnitBytes);
#pragma unroll
    for (int half = 0; half < Shape::kHalves; ++half) {
      cuda::copy_box(to + half * Shape::kHalfBytes, &k_map_, half * 64, row, full, policy_);
      cuda::copy_box(to + Shape::kUnitBytes + half * Shape::kHalfBytes, &v_map_, half * 64, row,
                     full, policy_);
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

/// One block: chunks that begin in its share of the pages. The grid is one block a multiprocessor.
template <int kDim, int kQueryTiles>
__global__ void __launch_bounds__(MmaShape<kDim, kQueryTiles>::kThreads, 1)
    few_rows_mma(const __grid_constant__ FewRowsCall call, const __grid_constant__ MmaMemory memory,
                 const __grid_constant__ CUtensorMap k_map,
                 const __grid_constant__ CUtensorMap v_map) {
  using Shape = MmaShape<kDim, kQueryTiles>;
  using mma_detail::RingPlace;
  extern __shared__ unsigned char unaligned[];
  __shared__ mma_detail::Mailbox<Shape> mail;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp, lane = threadIdx.x % cuda::kWarp;
  if (threadIdx.x == 0) {
    for (int i = 0; i < memory.stages; ++i) {
      mail.full[i].init(1);
      mail.empty[i].init(kQueryTiles);
    }
    for (int i = 0; i < mail.kItems; ++i) {
      mail.item_full[i].init(1);
      mail.item_empty[i].init(Shape::kWarps);
    }
    cuda::publish_barriers();
    cuda::prefetch_map(&k_map);
    cuda::prefetch_map(&v_map);
  }
  __syncthreads();
  // The swizzle is a function of addresses: units begin at multiples of its period.
  unsigned char* const ring = unaligned + (-cuda::shared_address(unaligned) & (kRingAlign - 1));
  cuda::wait_for_previous();
  if (warp == Shape::kWarps) {
    mma_detail::Loader<Shape>(call, mail, ring, memory.stages, k_map, v_map).run();
    cuda::release_next();
    return;
  }
  mma_detail::Worker<kDim, kQueryTiles> worker(call.params, warp);
  const uint32_t first_unit = cuda::shared_address(ring);
  float* const o = reinterpret_cast<float*>(ring + memory.stages * 2 * Shape::kUnitBytes);
  const PartStates parts{
      o, reinterpret_cast<float2*>(reinterpret_cast<unsigned char*>(o) + memory.o_bytes),
      Shape::kParts, call.rule.queries, Shape::kPitch};
  const int own_part = warp / kQueryTiles;
  RingPlace at{own_part}, item_at;
  int units_before = 0;
  for (;; item_at.next(mail.kItems)) {
    mail.item_full[item_at.stage].wait(item_at.parity);
    const mma_detail::Item& item = mail.items[item_at.stage];
    if (item.end) return;
    if (item.other_queries)
      worker.load_queries(item.v, item.k, item.k.tile * Shape::kQueries, item.n_queries);
    worker.begin();
    // Units go round the warps without regard to chunks, states are kept by the unit's place in its
    // chunk.
    const int n_units = (item.k.end - item.k.begin) * Shape::kUnits;
    const int part = (own_part - units_before) & (Shape::kParts - 1);
    units_before += n_units;
#pragma unroll 1
    for (int i = part; i < n_units; i += Shape::kParts) {
      const uint32_t k_unit = first_unit + at.stage * 2 * Shape::kUnitBytes;
      mail.full[at.stage].wait(at.parity);
      const int first = mail.first[at.stage];
      if (first < 0)
        worker.template unit<false>(k_unit, k_unit + Shape::kUnitBytes, item.v, ~first);
      else
        worker.template unit<true>(k_unit, k_unit + Shape::kUnitBytes, item.v, first);
      __syncwarp();
      if (lane == 0) mail.empty[at.stage].arrive();
      at.next(memory.stages, Shape::kParts);
    }
    worker.put(parts, part, item.n_queries);
    finish_chunk<Shape::kWorkers, kDim / cuda::kWarp>(call, item.v, item.k, item.n_queries, parts,
                                                      static_cast<int>(threadIdx.x));
    __syncwarp();
    if (lane == 0) mail.item_empty[item_at.stage].arrive();
  }
}

}  // namespace tandem
