#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/linear/code_tiles.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kInputs = 8;  // inputs of a span, which share a scale

/// Spans of a piece.
__host__ __device__ constexpr int spans_of(Code code) { return code == Code::i4 ? 8 : 4; }
__host__ __device__ constexpr int spans_across(int inputs) {
  return (inputs + kTileInputs - 1) / kTileInputs * (kTileInputs / kInputs);
}

/// The codes of a span, of rows g and g + 8 of a tile.
template <Code kCode>
struct Span {
  static constexpr int kSpans = spans_of(kCode), kPieces = kTileInputs / (kSpans * kInputs);
  const uint8_t* tile;
  int first;          // input within the tile
  int shift;          // codes begin at this bit of their words
  unsigned words[4];  // a pair of inputs each

  __device__ Span(const CodeTiles& w, int down, int g, int span) {
    const int piece = span / kSpans, t = span % kSpans / (kSpans / 4);
    tile = w.data + down * w.row_bytes() + piece / kPieces * w.tile_bytes();
    first = span * kInputs % kTileInputs;
    shift = kCode == Code::i4 ? 8 * (span % 2) : 0;
    const auto* const at = reinterpret_cast<const unsigned*>(tile + piece % kPieces * kPieceBytes);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) words[pair] = at[(g * 4 + pair) * 4 + t];
  }
  /// Calls store(i, weight) for the inputs.
  template <class Store>
  __device__ void widen(const CodeTiles& w, int row, const Store& store) const {
    constexpr int kBits = kCode == Code::i4 ? 4 : 8;
    const tiles::Scaling<kCode> scaling(w, tile, first, row);
    const int from = shift + kBits * (row / 8);
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const unsigned code = words[i / 2] >> (from + 16 * (i % 2)) & ((1u << kBits) - 1);
      store(i, scaling.number(code));
    }
  }
};

/// A row of tiles a block in x.
template <Code kCode>
__global__ void __launch_bounds__(kThreads) widen_tiles(const WidenTilesParams p) {
  cuda::start_after_previous();
  const CodeTiles& w = p.tiles;
  // Neighbouring threads read the same piece, and write spans of a row that follow each other.
  constexpr int kSpans = spans_of(kCode);
  const int index = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  const int span = index / (8 * kSpans) * kSpans + index % kSpans, g = index / kSpans % 8;
  const int tile = blockIdx.x;
  if (span >= spans_across(p.inputs)) return;
  const Span<kCode> codes(w, p.first + tile, g, p.begin / kInputs + span);
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = g + 8 * high;
    if (!w.is_output(p.first + tile, row)) continue;
    const int to = w.place(p.first, p.n, tile, row);
    cuda::Vector<__nv_bfloat16, kInputs> all;
    codes.widen(w, row, [&](int i, float v) { all.at[i] = __float2bfloat16_rn(v); });
    auto* const out = reinterpret_cast<__nv_bfloat16*>(p.out) +
                      static_cast<int64_t>(to) * p.inputs + span * kInputs;
    if (p.inputs % kInputs == 0) {
      if (span * kInputs < p.inputs)
        *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(&all);
    } else {
      for (int i = 0; i < kInputs && span * kInputs + i < p.inputs; ++i) out[i] = all.at[i];
    }
  }
}

template <Code kCode>
__global__ void __launch_bounds__(kThreads) embed_tiles(const EmbedTilesParams p) {
  cuda::start_after_previous();
  const CodeTiles& w = p.table;
  const int span = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x, k = span * kInputs;
  if (k >= w.in) return;
  const int given = p.ids[blockIdx.x], id = given - p.first, n = min(kInputs, w.in - k);
  float* const out = p.out + static_cast<int64_t>(blockIdx.x) * w.in + k;
  if (id >= 0 && id < w.out) {
    const int row = id % kTileOutputs;
    Span<kCode>(w, id / kTileOutputs, row % 8, span).widen(w, row, [&](int i, float v) {
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
                  cuda::blocks_for(spans_across(p.inputs) * 8, kThreads));
  const auto kernel = p.tiles.code == Code::i4   ? widen_tiles<Code::i4>
                      : p.tiles.code == Code::i8 ? widen_tiles<Code::i8>
                                                 : widen_tiles<Code::fp8>;
  cuda::launch(kernel, grid, kThreads, stream, p);
}

void embed_tiles_cuda(const EmbedTilesParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(p.n_rows),
                  cuda::blocks_for(spans_across(p.table.in), kThreads));
  const auto kernel = p.table.code == Code::i4   ? embed_tiles<Code::i4>
                      : p.table.code == Code::i8 ? embed_tiles<Code::i8>
                                                 : embed_tiles<Code::fp8>;
  cuda::launch(kernel, grid, kThreads, stream, p);
}

}  // namespace tandem
