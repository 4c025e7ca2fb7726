#pragma once
// The computing roles of attention's backward pass with d 256.
#include "kernels/attention/hopper/backward_compute.cuh"
#include "kernels/attention/hopper/backward_wide_shape.cuh"

namespace tandem::hopper {

/// Zeros vectors from `exist` on, which may hold NaN: their weights are 0, but 0 * NaN is not.
/// Another warpgroup may write the same zeros or read what its weights leave out.
__device__ inline void clear_vectors(WideTile& tile, int exist, int group) {
  for (int i = threadIdx.x % cuda::kWarpgroup; i < (kPageTokens - exist) * 8; i += cuda::kWarpgroup)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      *reinterpret_cast<uint4*>(&tile[c][(exist + i / 8) * 64 + i % 8 * 8]) =
          make_uint4(0, 0, 0, 0);
  cuda::shared_writes_fence();
  cuda::named_sync(1 + group, cuda::kWarpgroup);  // barrier 0 is __syncthreads
}

/// A thread's place in a warpgroup, in its 64 rows and in a step's 64 columns.
struct WideLane {
  int thread, row, pair;  // row: the first, 8 before the other; pair: the first column

  __device__ WideLane()
      : thread(static_cast<int>(threadIdx.x % cuda::kWarpgroup)),
        row(thread / cuda::kWarp * 16 + thread % cuda::kWarp / 4),
        pair(2 * (thread % 4)) {}
};

/// Writes 64 rows of gradients, `further` vectors after those of q or k.
__device__ inline void write_sums(const AttentionBackwardParams& p, const BackwardBlock& b,
                                  const float (&sums)[128], float by, int first, int further) {
  auto* out = static_cast<__nv_bfloat16*>(p.dqkv);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + 8 * h;
    store_row<256>(out + (b.gradient_at(p, row) + further) * 256, sums, h, by, row < b.n_rows);
  }
}

/// The pieces of keys for one of the two warpgroups. kValues computes shares and dv, the other one
/// their gradients and dk. A step's product is started right after the sums of the step before.
/// Work of the other warpgroup is then under way while this one turns products into weights.
template <bool kValues>
__device__ void compute_of_keys(WideMemory& m, const AttentionBackwardParams& p) {
  constexpr int kGroup = kValues ? 0 : 1;
  auto& barriers = m.of_keys;
  // The product is of the rows and `in_product`; the sums are over `in_sums`.
  TileBarriers<1>& of_rows = kValues ? barriers.k : barriers.v;
  auto& in_product = kValues ? barriers.q : barriers.dout;
  auto& in_sums = kValues ? barriers.dout : barriers.q;
  const WideTile& rows = m.tiles[kGroup];
  const float to_log2 = p.scale * kLog2E;
  StageRing<WideShape::kStages> ring;
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    of_rows.full[0].wait(n % 2);
    const BackwardPiece& piece = m.piece(n);
    const BackwardBlock& b = piece.block;
    if (!b.exists) return;
    const WideLane lane;
    float sums[128], s[32];
    uint32_t weights[16];
#pragma unroll
    for (float& x : sums) x = 0;
    cuda::wgmma_done(sums);
    int tile = 0;
    const auto column = [&] { return (piece.tiles.first + tile) * WideShape::kVectors; };
    const auto start = [&] {
      const int stage = ring.stage();
      in_product.full[stage].wait(ring.parity());
      WideTile& columns = m.tiles[2 + 2 * stage + kGroup];
      if constexpr (!kValues)
        if (const int exist = b.n_rows - column(); exist < WideShape::kVectors)
          clear_vectors(columns, exist, kGroup);
      cuda::wgmma_fresh(s);
      cuda::wgmma_begin();
      start_products<256>(s, rows, columns);
    };
    start();
    int used = -1;  // the stage whose sums are under way
#pragma unroll 1
    for (int left = piece.tiles.steps;;) {
      const int stage = ring.stage();
      if (used >= 0) {
        cuda::wgmma_wait<1>();
        cuda::wgmma_done(weights);
        free_place(in_sums.empty[used]);
      }
      cuda::wgmma_wait<0>();
      cuda::wgmma_done(s);
      free_place(in_product.empty[stage]);
      if (--left == 0) free_place(of_rows.empty[0]);
      float4* const shares = m.shares(ring.at) + lane.thread;
      const unsigned place = ring.at % 2, parity = ring.at / 2 % 2;
      const float* numbers = &(kValues ? m.lse : m.sums)[ring.at % WideShape::kStats][lane.pair];
      if constexpr (kValues) {
        hide_pairs<true>(s, b.rule(p), b.row, column(), lane.row, lane.pair);
        barriers.shares.empty[place].wait(parity ^ 1);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 of = *reinterpret_cast<const float2*>(numbers + 8 * j);
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[4 * j + e] =
                cuda::exp2_fast(fmaf(s[4 * j + e], to_log2, -(e % 2 == 0 ? of.x : of.y)));
          shares[j * cuda::kWarpgroup] =
              make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
        }
        free_place(barriers.shares.full[place]);
      } else {
        barriers.shares.full[place].wait(parity);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 of = *reinterpret_cast<const float2*>(numbers + 8 * j);
          const float4 share = shares[j * cuda::kWarpgroup];
          s[4 * j] = share.x * (s[4 * j] - of.x);
          s[4 * j + 1] = share.y * (s[4 * j + 1] - of.y);
          s[4 * j + 2] = share.z * (s[4 * j + 2] - of.x);
          s[4 * j + 3] = share.w * (s[4 * j + 3] - of.y);
        }
        free_place(barriers.shares.empty[place]);
      }
      pack(weights, s);
      in_sums.full[stage].wait(ring.parity());
      WideTile& columns = m.tiles[2 + 2 * stage + 1 - kGroup];
      if (const int exist = b.n_rows - column(); exist < WideShape::kVectors)
        clear_vectors(columns, exist, kGroup);
      cuda::wgmma_begin();
      start_sums<256>(sums, weights, columns);
      used = stage;
      ++ring.at;
      if (++tile == piece.tiles.count) tile = 0;
      if (left == 0) break;
      start();
    }
    cuda::wgmma_wait<0>();
    cuda::wgmma_done(sums);
    free_place(in_sums.empty[used]);
    write_sums(p, b, sums, kValues ? 1.0f : p.scale, b.row + lane.row, kValues ? p.n_kv_heads : 0);
  }
}

/// The pieces of queries for the warpgroup of rows `group`.
__device__ inline void compute_of_queries(WideMemory& m, const AttentionBackwardParams& p,
                                          const BackwardWork& work, int of_group) {
  auto& barriers = m.of_queries;
  const float to_log2 = p.scale * kLog2E;
  StageRing<WideShape::kStages> ring;
#pragma unroll 1
  for (unsigned n = 0;; ++n) {
    // Uniform in a warp: where the compiler knows it, operands' places take no vector registers.
    const int group = __shfl_sync(cuda::kAllLanes, of_group, 0);
    const WideTile &q = m.tiles[2 * group], &dout = m.tiles[2 * group + 1];
    barriers.rows.full[group].wait(n % 2);
    const BackwardPiece& piece = m.piece(n);
    const BackwardBlock& b = piece.block;
    if (!b.exists) return;
    const WideLane lane;
    const int first = b.row + WideShape::kVectors * group;
    float lse[2], own_sums[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = b.stat_at(work, b.head) + min(first + lane.row + 8 * h, b.n_rows - 1);
      lse[h] = work.lse[at];
      own_sums[h] = work.sums[at];
    }
    float sums[128], s[32], ds[32];
    uint32_t gradients[16];
#pragma unroll
    for (float& x : sums) x = 0;
    cuda::wgmma_done(sums);
    int tile = -1;
    --ring.at;
    const auto column = [&] { return (piece.tiles.first + tile) * WideShape::kVectors; };
    // Goes to the next step that any row of the group sees.
    const auto next = [&] {
#pragma unroll 1
      for (;;) {
        ++ring.at;
        if (++tile == piece.tiles.steps) return false;
        if (!b.rule(p).none(first, WideShape::kVectors, column(), WideShape::kVectors)) return true;
        barriers.k.full[ring.stage()].wait(ring.parity());
        free_place(barriers.k.empty[ring.stage()]);
        barriers.v.full[0].wait(ring.at % 2);
        free_place(barriers.v.empty[0]);
      }
    };
    int used = -1;  // the stage whose sums are under way
    // Starts the products of a step. There is room for one step's values. They come while the sums
    // of the step before and the first product are under way.
    const auto start = [&] {
      const int stage = ring.stage(), exist = b.n_rows - column();
      barriers.k.full[stage].wait(ring.parity());
      if (exist < WideShape::kVectors) clear_vectors(m.tiles[4 + stage], exist, group);
      cuda::wgmma_fresh(s);
      cuda::wgmma_begin();
      start_products<256>(s, q, m.tiles[4 + stage]);
      if (used >= 0) {
        cuda::wgmma_wait<1>();
        cuda::wgmma_done(gradients);
        free_place(barriers.k.empty[used]);
      }
      barriers.v.full[0].wait(ring.at % 2);
      if (exist < WideShape::kVectors) clear_vectors(m.tiles[6], exist, group);
      cuda::wgmma_fresh(ds);
      cuda::wgmma_begin();
      start_products<256>(ds, dout, m.tiles[6]);
    };
    if (!next()) {  // rows beyond the document
      free_place(barriers.rows.empty[group]);
      continue;
    }
    start();
#pragma unroll 1
    for (;;) {
      cuda::wgmma_wait<1>();
      cuda::wgmma_done(s);
      hide_pairs<false>(s, b.rule(p), first, column(), lane.row, lane.pair);
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = cuda::exp2_fast(fmaf(s[i], to_log2, -lse[i / 2 % 2]));
      cuda::wgmma_wait<0>();
      cuda::wgmma_done(ds);
      free_place(barriers.v.empty[0]);
#pragma unroll
      for (int i = 0; i < 32; ++i) ds[i] = s[i] * (ds[i] - own_sums[i / 2 % 2]);
      pack(gradients, ds);
      used = ring.stage();
      cuda::wgmma_begin();
      start_sums<256>(sums, gradients, m.tiles[4 + used]);
      if (!next()) break;
      start();
    }
    free_place(barriers.rows.empty[group]);
    cuda::wgmma_wait<0>();
    cuda::wgmma_done(sums);
    free_place(barriers.k.empty[used]);
    write_sums(p, b, sums, p.scale, first + lane.row, 0);
  }
}

}  // namespace tandem::hopper
