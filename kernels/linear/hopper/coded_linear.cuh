#pragma once
// A block multiplies 128 outputs by up to 64 rows of x. One warp copies tiles, and slices of x,
// through a ring in shared memory. Four warps decode codes to exact bf16 numbers in registers, as
// wgmma's left operand. A warp's fragment of a tile is its part of that operand. Products
// of a unit go to fresh sums, which are multiplied by the unit's scale and added up in f32. With
// few outputs, the blocks of a cluster share the columns, and each adds up the sums of some rows of
// tiles. Two blocks share a multiprocessor, or four for up to 16 rows of x, except with fp8, whose
// products need the registers. One loads what it needs while another, perhaps the kernel before,
// ends.
//
// Tried on an H200 and slower: one block of 256 outputs a multiprocessor; a bulk copy for each tile
// instead of one box.
#include "kernels/cuda/launch.cuh"
#include "kernels/linear/hopper/coded_multiplier.cuh"
#include "kernels/linear/hopper/coded_store.cuh"

namespace tandem::coded {

/// Blocks on a multiprocessor, at most.
constexpr int blocks_with(Code code, int rows) { return code != Code::fp8 && rows <= 16 ? 4 : 2; }
/// Registers of a thread that does not multiply: more for the warp that sums up x.
template <bool kMinimum>
inline constexpr int kOtherRegisters = kMinimum ? 40 : 24;
template <Code kCode, bool kMinimum, int kRows>
inline constexpr int kMultiplyRegisters =
    512 / blocks_with(kCode, kRows) - kOtherRegisters<kMinimum>;

template <Code kCode, int kUnit, bool kMinimum, int kRows>
__global__ void __launch_bounds__(kThreads, blocks_with(kCode, kRows))
    coded_linear(const __grid_constant__ Maps maps, const CodedLinearParams all, const Plan plan) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char shared[];
  auto* const barriers = reinterpret_cast<Barriers*>(shared);
  const int warp = __shfl_sync(cuda::kAllLanes, cuda::warp_of(), 0), lane = cuda::lane_of();
  const Share share(all, plan, kRows);
  const int slices = share.end - share.begin;
  const Copier copier{
      .p = all, .maps = maps, .share = share, .plan = plan, .shared = shared, .barriers = barriers};
  const bool copies = warp == kCopyingWarp && lane == 0, shares = plan.parts > 1;
  if (copies) {
    cuda::tma_prefetch_map(maps.tiles);
    cuda::tma_prefetch_map(maps.x);
    for (int i = 0; i < plan.stages; ++i) {
      barriers->full[i].init(1);
      barriers->empty[i].init(kMultiply / cuda::kWarp);
      barriers->summed[i].init(1);
    }
    barriers->sums.init(1);
    cuda::init_fence();
    copier.begin();
    const int owned = (kTiles - share.part + plan.parts - 1) / plan.parts;
    barriers->sums.arrive_expecting(
        static_cast<unsigned>(owned * plan.parts * kTileOutputs * plan.x_rows * 4));
  }
  __syncthreads();
  cuda::release_next();

  if (warp >= kCopyingWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOtherRegisters<kMinimum>));
    if (copies) {
      cuda::wait_for_previous();
      copier.run();
    } else if (kMinimum && warp == kSummingWarp) {
      sum_inputs<kUnit>(share, plan, shared, barriers);
    }
    __syncwarp();
    if (shares) {
      cuda::cluster_arrive();
      cuda::cluster_wait();
    }
  } else {
    asm volatile(
        "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplyRegisters<kCode, kMinimum, kRows>));
    Multiplier<kCode, kUnit, kMinimum, kRows> m{.read = tiles::Reader<kCode, kMinimum>(all.w)};
    const auto slice_of = [&](int stage) {
      const uint8_t* const at = shared + plan.tiles_at + stage * kTiles * plan.tile_bytes;
      return Slice{
          .codes = at + warp * plan.codes_pitch,
          .scales = at + plan.scales_at + warp * plan.scales_pitch,
          .apart = 4 * plan.codes_pitch,
          .scales_apart = 4 * plan.scales_pitch,
          .x = cuda::shared_address(shared) + plan.x_at + 2 * stage * plan.x_rows * kChunk * 2,
          .sums = reinterpret_cast<const float*>(shared + plan.inputs_at) +
                  stage * m.kUnits * plan.x_rows,
          .x_rows = plan.x_rows};
    };
    const auto wait = [&](const cuda::Turn& turn) {
      barriers->full[turn.stage].wait(turn.parity);
      if (kMinimum) barriers->summed[turn.stage].wait(turn.parity);
    };
    cuda::Turn turn;
    wait(turn);
    m.inputs[kBlocksOf64 - 1] = slice_of(0).sums;  // any unit's: the minimum is 0
    m.fetch(slice_of(0), 0);
    m.decode(slice_of(0), 0);
    int before = -1;  // stage
    for (int i = 0; i < slices; ++i) {
      const int stage = turn.stage;
      turn.advance(plan.stages);
      m.multiply(
          slice_of(stage),
          [&] {
            __syncwarp();
            if (before >= 0 && lane == 0) barriers->empty[before].arrive();
          },
          [&] {
            if (i + 1 < slices) wait(turn);
            const Slice then = slice_of(turn.stage);
            m.fetch(then, 0);
            m.decode(then, 0);
          });
      before = stage;
    }
    m.fold(kBlocksOf64 - 1);

    // All have read the ring, whose place the sums take.
    if (shares) {
      cuda::cluster_arrive();
      cuda::cluster_wait();
    } else {
      cuda::named_sync(1, kMultiply);
    }
#pragma unroll
    for (int r = 0; r < kBlocksOf64; ++r)
      send(m.sums[r], plan, share.part, warp + 4 * r, shared, barriers->sums);
    if (shares)
      barriers->sums.wait(0);
    else
      cuda::named_sync(1, kMultiply);
    cuda::wait_for_previous();  // y, too, is another's until then
    const float* const sums = reinterpret_cast<const float*>(shared + cuda::kSwizzleAtom);
    if (all.product.y_type == DType::bf16)
      store<__nv_bfloat16>(all, share, plan, sums);
    else
      store<float>(all, share, plan, sums);
  }
#endif
}

using Kernel = void (*)(Maps, CodedLinearParams, Plan);

/// The kernels for codes of each kind.
Kernel kernel_of_i4(const CodeTiles& w, int rows);
Kernel kernel_of_i8(const CodeTiles& w, int rows);
Kernel kernel_of_fp8(int rows);

template <Code kCode, int kUnit, bool kMinimum>
Kernel kernel_of(int rows) {
  return rows <= 16   ? coded_linear<kCode, kUnit, kMinimum, 16>
         : rows <= 32 ? coded_linear<kCode, kUnit, kMinimum, 32>
                      : coded_linear<kCode, kUnit, kMinimum, 64>;
}

template <Code kCode, bool kMinimum>
Kernel kernel_of(int unit, int rows) {
  switch (unit) {
    case 16:
      return kernel_of<kCode, 16, kMinimum>(rows);
    case 32:
      return kernel_of<kCode, 32, kMinimum>(rows);
    case 64:
      return kernel_of<kCode, 64, kMinimum>(rows);
    default:
      return kernel_of<kCode, kTileInputs, kMinimum>(rows);
  }
}

}  // namespace tandem::coded
