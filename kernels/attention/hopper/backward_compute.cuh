#pragma once
// The computing role of attention's backward pass: a warpgroup's 64 rows against the columns.
#include "base/log2.h"
#include "kernels/attention/hopper/backward_shape.cuh"
#include "kernels/attention/hopper/store_rows.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::hopper {

/// products = rows columns^T, put under way.
template <int kDim>
__device__ void start_products(float (&products)[32], const BackwardVectors<kDim>& rows,
                               const BackwardVectors<kDim>& columns) {
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    const uint64_t a = cuda::wgmma_operand(cuda::shared_address(rows[c]), 0);
    const uint64_t b = cuda::wgmma_operand(cuda::shared_address(columns[c]), 0);
#pragma unroll
    for (int step = 0; step < 4; ++step)  // 16 elements, 32 bytes: 2 in units of an operand's start
      cuda::wgmma_ss(products, a + 2 * step, b + 2 * step, c + step > 0);
  }
  cuda::wgmma_commit();
}

/// sums += weights columns, put under way.
template <int kDim>
__device__ void start_sums(float (&sums)[kDim / 2], const uint32_t (&weights)[16],
                           const BackwardVectors<kDim>& columns) {
  const uint64_t b = cuda::wgmma_operand(cuda::shared_address(columns[0]), sizeof(columns[0]));
#pragma unroll
  for (int step = 0; step < kPageTokens / 16; ++step)  // 16 columns, 2048 bytes
    cuda::wgmma_rs(sums, weights + 4 * step, b + 2048 / 16 * step);
  cuda::wgmma_commit();
}

__device__ inline void pack(uint32_t (&to)[16], const float (&from)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) to[i] = cuda::pack_bf16(from[2 * i], from[2 * i + 1]);
}

/// Zeros columns from `exist` on, which may hold NaN: their weights are 0, but 0 * NaN is not. Both
/// groups write the same zeros before their own reads, so neither waits for the other.
template <int kDim>
__device__ void clear_columns(BackwardVectors<kDim> (&columns)[2], int exist, int group) {
  for (int i = threadIdx.x % cuda::kWarpgroup; i < (kPageTokens - exist) * 8; i += cuda::kWarpgroup)
#pragma unroll
    for (int c = 0; c < 2 * (kDim / 64); ++c)
      *reinterpret_cast<uint4*>(
          &columns[c / (kDim / 64)][c % (kDim / 64)][(exist + i / 8) * 64 + i % 8 * 8]) =
          make_uint4(0, 0, 0, 0);
  cuda::shared_writes_fence();
  cuda::named_sync(1 + group, cuda::kWarpgroup);  // barrier 0 is __syncthreads
}

/// One thread a warp says that its warp has read what the barrier guards. Threads that still wait
/// for that place to fill would miss it if it filled again.
__device__ inline void free_place(cuda::Barrier& empty) {
  __syncwarp();
  if (threadIdx.x % cuda::kWarp == 0) empty.arrive();
}

/// Products of pairs that do not count become -inf, NaN included: 64 rows from `row` on against a
/// page of columns from `column` on. `in_rows` and `in_columns`: where products[0] lies in them.
template <bool kKeys>
__device__ void hide_pairs(float (&products)[32], const CausalWindow& rule, int row, int column,
                           int in_rows, int in_columns) {
  const bool all = kKeys ? rule.all(column, kPageTokens, row, 64)
                         : rule.all(row, min(64, rule.n_rows - row), column,
                                    kPageTokens);  // rows beyond it are never written
  if (all) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int of_row = row + in_rows + 8 * h, begin = column + in_columns;
    const int2 seen = kKeys ? rule.queries(of_row) : rule.keys(of_row);
    const auto n = static_cast<unsigned>(max(0, seen.y - seen.x));
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (static_cast<unsigned>(begin + i / 2 * 8 + i % 2 - seen.x) >= n)
        products[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
  }
}

/// The steps of a piece, of which a group takes those that any of its rows sees.
template <int kDim, bool kKeys>
class BackwardSteps {
 public:
  using Shape = BackwardShape<kDim>;
  using Ring = StageRing<Shape::kStages>;

  /// `ring`: of the piece's first step.
  __device__ BackwardSteps(const BackwardPiece& piece, int window, int group, const Ring& ring)
      : piece_(piece),
        window_(window),
        group_(group),
        ring_{ring.at - 1},
        end_(ring.at + static_cast<unsigned>(piece.tiles.steps)) {}

  /// Goes to the next one, whose columns have then arrived. The first call finds the first.
  __device__ bool next(BackwardMemory<kDim>& m) {
#pragma unroll 1
    for (;;) {
      if (++tile_ == piece_.tiles.count) tile_ = 0;
      if (++ring_.at == end_) return false;
      m.full[ring_.stage()].wait(ring_.parity());
      const bool none = kKeys ? rule().none(column(), Shape::kColumns, row(), 64)
                              : rule().none(row(), 64, column(), Shape::kColumns);
      if (!none) return true;
      free_place(m.empty[ring_.stage()]);
    }
  }
  /// After the last step: that of the next piece's first.
  __device__ const Ring& ring() const { return ring_; }
  __device__ int column() const { return (piece_.tiles.first + tile_) * Shape::kColumns; }
  /// Columns of the step that the document has.
  __device__ int exist() const { return piece_.block.n_rows - column(); }

  /// Hides pairs that do not count; `in_rows` and `in_columns`: as in hide_pairs.
  __device__ void hide(float (&products)[32], int in_rows, int in_columns) const {
    hide_pairs<kKeys>(products, rule(), row(), column(), in_rows, in_columns);
  }

 private:
  __device__ CausalWindow rule() const { return {piece_.block.n_rows, window_}; }
  __device__ int row() const { return piece_.block.row + 64 * group_; }

  const BackwardPiece& piece_;
  const int window_, group_;
  Ring ring_;
  const unsigned end_;
  int tile_ = -1;
};

/// A piece's work for the group of `rows`. The products of a step are started right after the sums
/// of the step before: while this group turns scores into weights, there is work under way, its own
/// or the other group's. `ring` is moved on by the piece's steps.
template <int kDim, bool kKeys>
__device__ void compute_piece(BackwardMemory<kDim>& m, const AttentionBackwardParams& p,
                              const BackwardWork& work, const BackwardPiece& piece,
                              const RowRing<kDim>& rows,
                              StageRing<BackwardShape<kDim>::kStages>& ring) {
  const BackwardBlock& b = piece.block;
  const int group = rows.group();
  // Uniform in a warp: where the compiler knows it, operands' places take no vector registers.
  const int place = __shfl_sync(cuda::kAllLanes, rows.stage(), 0);
  const int lane = static_cast<int>(threadIdx.x % cuda::kWarp);
  const int warp = static_cast<int>(threadIdx.x % cuda::kWarpgroup / cuda::kWarp);
  const int own =
      16 * warp + lane / 4;         // of the group's rows this thread's first, 8 before its other
  const int pair = 2 * (lane % 4);  // of columns, the first
  const float to_log2 = p.scale * kLog2E;
  float lse[2], own_sums[2];  // of queries as rows
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kKeys) continue;
    const int64_t at =
        b.stat_at(work, b.head) + min(b.row + 64 * group + own + 8 * h, b.n_rows - 1);
    lse[h] = work.lse[at];
    own_sums[h] = work.sums[at];
  }
  float first[kDim / 2], second[kKeys ? kDim / 2 : 1];  // dk or dq, but for the scale; dv
#pragma unroll
  for (float& x : first) x = 0;
#pragma unroll
  for (float& x : second) x = 0;
  cuda::wgmma_done(first);
  cuda::wgmma_done(second);
  float s[32], ds[32];
  uint32_t weights[16], gradients[16];

  BackwardSteps<kDim, kKeys> steps(piece, p.window, group, ring);
  const auto start = [&] {
    auto& columns = m.columns[steps.ring().stage()];
    if (steps.exist() < BackwardShape<kDim>::kColumns)
      clear_columns<kDim>(columns, steps.exist(), group);
    cuda::wgmma_fresh(s);
    cuda::wgmma_fresh(ds);
    cuda::wgmma_begin();
    start_products<kDim>(s, m.rows[place][0], columns[0]);
    start_products<kDim>(ds, m.rows[place][1], columns[1]);
  };
  if (!steps.next(m)) {  // rows beyond the document
    free_place(m.rows_empty[place]);
    ring = steps.ring();
    return;
  }
  start();
  int used = -1;  // the stage whose sums are under way
#pragma unroll 1
  for (;;) {
    const int stage = steps.ring().stage();
    cuda::wgmma_wait<1>();
    cuda::wgmma_done(s);
    if (used >= 0) {
      cuda::wgmma_done(gradients);
      free_place(m.empty[used]);
    }
    steps.hide(s, own, pair);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2 of = {};
      if constexpr (kKeys) of = *reinterpret_cast<const float2*>(&m.lse[stage][8 * j + pair]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float shift = kKeys ? (e % 2 == 0 ? of.x : of.y) : lse[e / 2];
        s[4 * j + e] = cuda::exp2_fast(fmaf(s[4 * j + e], to_log2, -shift));
      }
    }
    if constexpr (kKeys) {
      pack(weights, s);
      cuda::wgmma_begin();
      start_sums<kDim>(second, weights, m.columns[stage][1]);
      cuda::wgmma_wait<1>();
    } else {
      cuda::wgmma_wait<0>();
    }
    cuda::wgmma_done(ds);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2 of = {};
      if constexpr (kKeys) of = *reinterpret_cast<const float2*>(&m.sums[stage][8 * j + pair]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float sum = kKeys ? (e % 2 == 0 ? of.x : of.y) : own_sums[e / 2];
        ds[4 * j + e] = s[4 * j + e] * (ds[4 * j + e] - sum);
      }
    }
    pack(gradients, ds);
    cuda::wgmma_begin();
    start_sums<kDim>(first, gradients, m.columns[stage][0]);
    if constexpr (kKeys) {
      cuda::wgmma_wait<1>();
      cuda::wgmma_done(weights);
    }
    used = stage;
    if (!steps.next(m)) break;
    start();
  }
  free_place(m.rows_empty[place]);
  cuda::wgmma_wait<0>();
  cuda::wgmma_done(first);
  cuda::wgmma_done(second);
  free_place(m.empty[used]);
  ring = steps.ring();
  auto* out = static_cast<__nv_bfloat16*>(p.dqkv);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = b.row + 64 * group + own + 8 * h;
    const bool write = row < b.n_rows;
    const int64_t at = b.gradient_at(p, row);
    store_row<kDim>(out + at * kDim, first, h, p.scale, write);
    if constexpr (kKeys) store_row<kDim>(out + (at + p.n_kv_heads) * kDim, second, h, 1, write);
  }
}

/// Pieces from that of `rows` on, of one kind: numbers never fall, so those of keys come first.
template <int kDim, bool kKeys>
__device__ void compute_pieces(BackwardMemory<kDim>& m, const AttentionBackwardParams& p,
                               const BackwardWork& work, RowRing<kDim>& rows,
                               StageRing<BackwardShape<kDim>::kStages>& ring) {
#pragma unroll 1
  for (;; rows.at += RowRing<kDim>::kGroups) {
    m.rows_full[rows.stage()][rows.group()].wait(rows.full_parity());
    const BackwardPiece& piece = m.piece(rows.piece());
    if (!piece.block.exists || piece.block.of_keys != kKeys) return;
    compute_piece<kDim, kKeys>(m, p, work, piece, rows, ring);
  }
}

}  // namespace tandem::hopper
