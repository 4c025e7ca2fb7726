#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/linear/code_tiles.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kSpans = 4;  // each thread takes a quarter of a piece's inputs

/// Inputs of a span, which share a scale.
__host__ __device__ constexpr int span_of(Code code) { return code == Code::i4 ? 16 : 8; }
__host__ __device__ constexpr int spans_across(const CodeTiles& w) {
  return w.across() * w.pieces() * kSpans;
}

/// Calls store(i, weight) for the inputs of a span, with the bits of `dequantize`.
/// row      counts within the row of tiles
template <Code kCode, class Store>
__device__ void widen_span(const CodeTiles& w, int down, int row, int span, const Store& store) {
  constexpr int kInputs = span_of(kCode);
  const int g = row % 8, high = row / 8, t = span % kSpans, piece = span / kSpans;
  const uint8_t* const tile = w.data + down * w.row_bytes() + piece / w.pieces() * w.tile_bytes();
  const uint8_t* const at = tile + piece % w.pieces() * kPieceBytes;
  const int place = span * kInputs % kTileInputs / w.unit() * kTileOutputs + row;
  const float scale = tiles::scale_at<kCode>(tile + w.scales_at(), place, w.scale);
  const uint8_t* const zeros = tile + w.zeros_at();
  float zero = kCode == Code::i4 && w.zero == Zero::none ? 8 : 0;
  if (w.zero == Zero::integer) zero = tiles::zero_of(zeros + place, kCode);
  if (kCode == Code::i8) zero += 128;
  const float least =
      w.zero == Zero::minimum ? tiles::scale_at<kCode>(zeros, place, w.scale) : 0.0f;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const unsigned word = reinterpret_cast<const unsigned*>(at)[(g * 4 + pair) * 4 + t];
#pragma unroll
    for (int i = 0; i < kInputs / 4; ++i) {
      const int eight = i / 2, odd = i % 2;
      const unsigned code = kCode == Code::i4 ? word >> (4 * high + 8 * eight + 16 * odd) & 15
                                              : word >> (8 * high + 16 * odd) & 255;
      const float number =
          kCode == Code::fp8 ? tiles::fp8_number(code) : static_cast<float>(code) - zero;
      store(8 * eight + 2 * pair + odd, __fadd_rn(__fmul_rn(scale, number), least));
    }
  }
}

/// A row of tiles a block in x.
template <Code kCode>
__global__ void __launch_bounds__(kThreads) widen_tiles(const WidenTilesParams p) {
  cuda::start_after_previous();
  const CodeTiles& w = p.tiles;
  constexpr int kInputs = span_of(kCode);
  // Neighbouring threads read the same tile: 4 spans of each of 8 rows.
  const int index = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  const int span = index / 32 * kSpans + index % kSpans, tile = blockIdx.x;
  if (span >= spans_across(w)) return;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = index % 32 / kSpans + 8 * high;
    if (!w.is_output(p.first + tile, row)) continue;
    const int to = w.place(p.first, p.n, tile, row);
    cuda::Vector<__nv_bfloat16, kInputs> all;
    widen_span<kCode>(w, p.first + tile, row, span,
                      [&](int i, float v) { all.at[i] = __float2bfloat16_rn(v); });
    auto* const out =
        reinterpret_cast<__nv_bfloat16*>(p.out) + static_cast<int64_t>(to) * w.in + span * kInputs;
    if (w.in % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kInputs; i += 8)
        if (span * kInputs + i < w.in)
          *reinterpret_cast<uint4*>(out + i) = reinterpret_cast<const uint4*>(&all)[i / 8];
    } else {
      for (int i = 0; i < kInputs && span * kInputs + i < w.in; ++i) out[i] = all.at[i];
    }
  }
}

template <Code kCode>
__global__ void __launch_bounds__(kThreads) embed_tiles(const EmbedTilesParams p) {
  cuda::start_after_previous();
  const CodeTiles& w = p.table;
  constexpr int kInputs = span_of(kCode);
  const int span = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x, k = span * kInputs;
  if (k >= w.in) return;
  const int given = p.ids[blockIdx.x], id = given - p.first, n = min(kInputs, w.in - k);
  float* const out = p.out + static_cast<int64_t>(blockIdx.x) * w.in + k;
  if (id >= 0 && id < w.out) {
    widen_span<kCode>(w, id / kTileOutputs, id % kTileOutputs, span, [&](int i, float v) {
      if (i < n) out[i] = v;
    });
  } else {
    for (int i = 0; i < n; ++i) out[i] = given >= 0 && given < p.whole ? 0 : cuda::quiet_nan();
  }
}

}  // namespace

void widen_tiles_cuda(const WidenTilesParams& p, Stream stream) {
  if (p.n == 0) return;
  const dim3 grid(static_cast<unsigned>(p.n),
                  cuda::blocks_for(spans_across(p.tiles) * 8, kThreads));
  const auto kernel = p.tiles.code == Code::i4   ? widen_tiles<Code::i4>
                      : p.tiles.code == Code::i8 ? widen_tiles<Code::i8>
                                                 : widen_tiles<Code::fp8>;
  cuda::launch(kernel, grid, kThreads, stream, p);
}

void embed_tiles_cuda(const EmbedTilesParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(p.n_rows),
                  cuda::blocks_for(spans_across(p.table), kThreads));
  const auto kernel = p.table.code == Code::i4   ? embed_tiles<Code::i4>
                      : p.table.code == Code::i8 ? embed_tiles<Code::i8>
                                                 : embed_tiles<Code::fp8>;
  cuda::launch(kernel, grid, kThreads, stream, p);
}

}  // namespace tandem
