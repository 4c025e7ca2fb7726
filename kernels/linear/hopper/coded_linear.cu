#include <algorithm>

#include "kernels/cuda/tensor_map.h"
#include "kernels/linear/hopper/coded_linear.cuh"

namespace tandem {

coded::Kernel coded::kernel_of_i4(const CodeTiles& w, int rows) {
  return w.zero == Zero::minimum ? kernel_of<Code::i4, true>(w.unit(), rows)
                                 : kernel_of<Code::i4, false>(w.unit(), rows);
}

namespace hopper {
namespace {

using coded::Plan;

/// Rows up to which the portable body is as fast, on an H200 with the layers of an 8B model.
constexpr int kFewRows = 4;

/// Rows up to which this costs less than widening the codes and cuBLASLt's product, likewise.
int most_rows(const CodeTiles& w) {
  if (w.zero == Zero::minimum) return 64;
  return w.unit() < 64 ? 128 : 256;
}

// The system keeps 1 KiB of an SM's 228 for each block.
constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024;
/// Bytes after the last stage that are read, and ignored: zeros where there are none, and sums of x
/// for rows that there are not.
constexpr int kReadBeyond = 256;
constexpr int kLeastStages = 2, kMostParts = 8;
constexpr int kMostBox = 256;  // numbers along a side of what the copy engine moves
/// Clusters of 1, 2, .. blocks that run at once on an H200, whose groups of SMs differ in size,
/// with two blocks on an SM.
constexpr int kClusters[kMostParts] = {264, 132, 78, 60, 44, 34, 30, 30};

int blocks_of(const CodeTiles& w) { return (w.down() + coded::kTiles - 1) / coded::kTiles; }

/// Rows of x that a block multiplies.
int rows_of(int rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

/// Parts of the columns, for a number of blocks on a multiprocessor.
int parts_of(const CodeTiles& w, int blocks) {
  int parts = std::min(kMostParts, w.across());
  while (parts > 1 && kClusters[parts - 1] * blocks / 2 < blocks_of(w)) --parts;
  return parts;
}

/// Blocks on a multiprocessor: two, if more would leave some multiprocessors idle.
int blocks_at_once(const CodeTiles& w, int most_rows) {
  const int most = coded::blocks_with(w.code, most_rows);
  return blocks_of(w) * parts_of(w, most) > kClusters[0] ? most : 2;
}

Plan plan_of(const CodeTiles& w, int rows) {
  const int most = rows_of(rows);
  Plan plan;
  const int blocks = blocks_at_once(w, most);
  plan.parts = parts_of(w, blocks);
  plan.passes = (rows + most - 1) / most;
  plan.x_rows = (std::min(rows, most) + 7) / 8 * 8;
  plan.pitch = plan.x_rows + 8;
  plan.tile_bytes = w.tile_bytes();
  const bool divided = plan.tile_bytes > kMostBox * 8;
  plan.codes_pitch = divided ? w.scales_at() : plan.tile_bytes;
  plan.scales_pitch = divided ? plan.tile_bytes - w.scales_at() : plan.tile_bytes;
  plan.scales_at = divided ? coded::kTiles * w.scales_at() : w.scales_at();

  const int x = 2 * plan.x_rows * coded::kChunk * 2, tiles = coded::kTiles * plan.tile_bytes;
  const int inputs = w.zero == Zero::minimum ? w.units() * plan.x_rows * 4 : 0;
  const int begin = cuda::kSwizzleAtom;  // after the barriers
  const int room = kSmBytes / blocks - kReservedBytes - begin - kReadBeyond;
  plan.stages = std::min(room / (x + tiles + inputs), coded::kMostStages);
  plan.x_at = begin;
  plan.tiles_at = plan.x_at + plan.stages * x;
  plan.inputs_at = plan.tiles_at + plan.stages * tiles;
  const int slots = (coded::kTiles + plan.parts - 1) / plan.parts * plan.parts;
  plan.bytes = std::max(plan.inputs_at + plan.stages * inputs + kReadBeyond,
                        begin + slots * kTileOutputs * plan.pitch * 4);
  return plan;
}

bool takes_portable(const CodeTiles& w, int rows, bool norm) {
  return norm || (rows <= kFewRows && portable::coded_linear_fits(w, rows, norm));
}

}  // namespace

bool coded_linear_fits(const CodeTiles& w, int rows, bool norm) {
  if (takes_portable(w, rows, norm)) return portable::coded_linear_fits(w, rows, norm);
  return rows <= most_rows(w) && w.in % 8 == 0 && plan_of(w, rows).stages >= kLeastStages;
}

void coded_linear_cuda(const CodedLinearParams& p, Stream stream) {
  const int rows = p.product.rows;
  if (rows == 0) return;
  if (takes_portable(p.w, rows, p.product.norm_weight != nullptr))
    return portable::coded_linear_cuda(p, stream);
  const Plan plan = plan_of(p.w, rows);
  const coded::Kernel kernel = p.w.code == Code::i4   ? coded::kernel_of_i4(p.w, rows)
                               : p.w.code == Code::i8 ? coded::kernel_of_i8(p.w, rows)
                                                      : coded::kernel_of_fp8(rows);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.bytes);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
  const auto map_of = [&](int box_bytes) {
    return cuda::plain_map(p.w.data, p.w.down(), p.w.row_bytes(), coded::kTiles, box_bytes);
  };
  const coded::Maps maps{
      .tiles = map_of(plan.codes_pitch),
      .scales = map_of(plan.scales_pitch),
      .x = cuda::swizzled_map(p.product.x, rows, p.w.in, std::min(rows, plan.x_rows))};
  cuda::launch(kernel, static_cast<unsigned>(blocks_of(p.w) * plan.passes * plan.parts),
               coded::kThreads, static_cast<size_t>(plan.bytes), plan.parts, stream, maps, p, plan);
}

}  // namespace hopper

}  // namespace tandem
