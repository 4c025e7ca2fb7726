#pragma once
// Attention of few rows in bf16 with head_dim 64 or 128. One warp brings K and V into a ring in
// shared memory, in units of 16 KiB; the others multiply. A working warp takes 16 queries and every
// kParts-th unit: large enough to keep one warp busy without waiting on its own results, and warps
// meet only when a chunk ends.
#include <algorithm>

#include "kernels/attention/few_rows_loader.cuh"
#include "kernels/attention/few_rows_worker.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem {

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

/// One block: the chunk of its own number, then what it can get. The grid is one block a
/// multiprocessor.
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
    cuda::init_fence();
    cuda::tma_prefetch_map(k_map);
    cuda::tma_prefetch_map(v_map);
  }
  __syncthreads();
  // The swizzle is a function of addresses: units begin at multiples of its period.
  unsigned char* const ring = unaligned + (-cuda::shared_address(unaligned) & (kRingAlign - 1));
  if (warp == Shape::kWarps) {
    mma_detail::Loader<Shape>(call, mail, ring, memory.stages, k_map, v_map).run();
    return;
  }
  cuda::wait_for_previous();
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
      worker.load_queries(item.v, item.k, call.rule.group, item.k.tile * Shape::kQueries,
                          item.n_queries);
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
