#include <algorithm>

#include "kernels/cuda/tensor_map.h"
#include "kernels/linear/hopper/tiled_linear.cuh"
#include "kernels/linear/tiled_linear.h"

namespace tandem::hopper {
namespace {

constexpr int kMaxCluster = 8;
// Of an SM's 228 KiB the system keeps one for each block.
constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024;
constexpr int kSmThreads = 2048;

/// Rows that a block multiplies.
int padded(int rows) { return rows <= 16 ? 16 : (rows + 31) / 32 * 32; }

struct Shared {
  int stages, bytes;
};

/// Shared memory of a block of which an SM is to have room for `blocks`.
Shared shared_of(int groups, int rows, int blocks) {
  const int room = kSmBytes / blocks - kReservedBytes - cuda::kSwizzleAtom;
  const int stage = (groups * 64 + rows) * tiled::kChunk * 2;
  const int stages = std::min(room / stage, tiled::kMaxStages);
  const int sums = rows * (groups * 64 + 4) * 4;  // as Tile::kPitch
  return {stages, cuda::kSwizzleAtom + std::max(stages * stage, sums)};
}

template <int kGroups, int kRows>
void launch(const TiledLinearParams& p, Stream stream) {
  using Shape = tiled::Tile<kGroups, kRows>;
  const CUtensorMap w =
      cuda::swizzled_map(p.w, p.out, p.in, p.gated ? Shape::kOut / 2 : Shape::kOut);
  const CUtensorMap x = cuda::swizzled_map(p.x, p.rows, p.in, kRows);
  const auto kernel = tiled::tiled_linear<kGroups, kRows>;
  const Shared shared = shared_of(kGroups, kRows, p.tiling.blocks);
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared.bytes);
  const int tiles = (p.out + Shape::kOut - 1) / Shape::kOut;
  cuda::launch(kernel, static_cast<unsigned>(tiles * p.tiling.parts), Shape::kThreads + cuda::kWarp,
               static_cast<size_t>(shared.bytes), p.tiling.parts, stream, w, x, p, shared.stages);
}

template <int kRows>
void launch(const TiledLinearParams& p, Stream stream) {
  switch (p.tiling.groups) {
    case 1:
      return launch<1, kRows>(p, stream);
    case 2:
      return launch<2, kRows>(p, stream);
    case 3:
      return launch<3, kRows>(p, stream);
    default:
      return launch<4, kRows>(p, stream);
  }
}

}  // namespace

bool tiled_linear_fits(const TiledLinearParams& p) {
  const LinearTiling& t = p.tiling;
  if (p.rows < 1 || p.rows > kTiledRows || p.in <= 0 || p.in % 8 != 0 || p.out <= 0 ||
      p.out % 8 != 0)
    return false;
  const int chunks = (p.in + tiled::kChunk - 1) / tiled::kChunk;
  if (t.groups < 1 || t.groups > 4 || t.blocks < 1 || t.parts < 1 ||
      t.parts > std::min(chunks, kMaxCluster))
    return false;
  const Shared shared = shared_of(t.groups, padded(p.rows), t.blocks);
  return shared.stages >= 2 && (shared.bytes + kReservedBytes) * t.blocks <= kSmBytes &&
         (t.groups * cuda::kWarpgroup + cuda::kWarp) * t.blocks <= kSmThreads;
}

void tiled_linear_cuda(const TiledLinearParams& p, Stream stream) {
  if (p.rows == 0) return;
  switch (padded(p.rows)) {
    case 16:
      return launch<16>(p, stream);
    case 32:
      return launch<32>(p, stream);
    case 64:
      return launch<64>(p, stream);
    case 96:
      return launch<96>(p, stream);
    default:
      return launch<128>(p, stream);
  }
}

}  // namespace tandem::hopper
