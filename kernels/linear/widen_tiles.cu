#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/linear/code_tiles.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kInputs = 16;  // inputs of a span, which share a scale
constexpr int kEights = kInputs / 8;

/// Spans of a piece.
__host__ __device__ constexpr int spans_of(Code code) { return code == Code::i4 ? 4 : 2; }
__host__ __device__ constexpr int spans_across(int inputs) {
  return (inputs + kTileInputs - 1) / kTileInputs * (kTileInputs / kInputs);
}

/// The codes of a span, of rows g and g + 8 of a tile.
template <Code kCode>
struct Span {
  static constexpr int kSpans = spans_of(kCode), kPieces = kTileInputs / (kSpans * kInputs);
  static constexpr bool kIsFour = kCode == Code::i4;
  const uint8_t* tile;
  int first;                   // input within the tile
  unsigned words[kEights][4];  // hold pairs of inputs

  __device__ Span(const CodeTiles& w, int down, int g, int span) {
    const int piece = span / kSpans, s = span % kSpans;
    tile = w.data + down * w.row_bytes() + piece / kPieces * w.tile_bytes();
    first = span * kInputs % kTileInputs;
    const auto* const at = reinterpret_cast<const unsigned*>(tile + piece % kPieces * kPieceBytes);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        words[e][pair] = at[(g * 4 + pair) * 4 + (kIsFour ? s : 2 * s + e)];
  }
  /// Calls store(i, two) for pairs of inputs, the first of which is i.
  template <class Store>
  __device__ void widen(const CodeTiles& w, int row, const Store& store) const {
    const tiles::Scaling<kCode> scaling(w, tile, first, row);
#pragma unroll
    for (int e = 0; e < kEights; ++e)
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const unsigned codes = kIsFour ? words[e][pair] >> (8 * e + row / 8 * 4) & 0x000f000fu
                                       : words[e][pair] >> row / 8 * 8 & 0x00ff00ffu;
        store(8 * e + 2 * pair, scaling.numbers(codes));
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
  const int tile = blockIdx.x, left = p.inputs - span * kInputs;
  if (span >= spans_across(p.inputs)) return;
  const Span<kCode> codes(w, p.first + tile, g, p.begin / kInputs + span);
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = g + 8 * high;
    if (!w.is_output(p.first + tile, row)) continue;
    const int to = w.place(p.first, p.n, tile, row);
    union {
      __nv_bfloat162 twos[kInputs / 2];
      __nv_bfloat16 ones[kInputs];
      uint4 eights[kEights];
    } all;
    codes.widen(w, row, [&](int i, float2 v) { all.twos[i / 2] = __float22bfloat162_rn(v); });
    auto* const out = reinterpret_cast<__nv_bfloat16*>(p.out) +
                      static_cast<int64_t>(to) * p.inputs + span * kInputs;
    if (p.inputs % 8 == 0) {
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        if (8 * e < left) *reinterpret_cast<uint4*>(out + 8 * e) = all.eights[e];
    } else {
#pragma unroll
      for (int i = 0; i < kInputs; ++i)
        if (i < left) out[i] = all.ones[i];
    }
  }
}

/// A row of tiles a block in x, as widen_tiles.
__global__ void __launch_bounds__(kThreads) plain_codes(const PlainCodesParams p) {
  cuda::start_after_previous();
  const CodeTiles& w = p.tiles;
  constexpr int kSpans = spans_of(Code::fp8);
  const int index = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  const int span = index / (8 * kSpans) * kSpans + index % kSpans, g = index / kSpans % 8;
  const int tile = blockIdx.x;
  if (span * kInputs >= w.in) return;
  const Span<Code::fp8> codes(w, p.first + tile, g, span);
  const int group = w.group == 0 ? w.in : w.group;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = g + 8 * high;
    if (!w.is_output(p.first + tile, row)) continue;
    const int to = w.place(p.first, p.n, tile, row);
    const auto four = [&](int e, int pair) {
      return __byte_perm(codes.words[e][pair], codes.words[e][pair + 1], high ? 0x7531 : 0x6420);
    };
    *reinterpret_cast<uint4*>(p.codes + int64_t{to} * w.in + span * kInputs) = {
        four(0, 0), four(0, 2), four(1, 0), four(1, 2)};
    if (span * kInputs % group != 0) continue;
    const int64_t at = int64_t{to / p.height} * (w.in / group) + span * kInputs / group;
    p.scales[at * p.height + to % p.height] =
        tiles::Scaling<Code::fp8>(w, codes.tile, codes.first, row).scale;
  }
}

constexpr int kEight = 8;  // inputs and outputs of a thread
static_assert(kThreads == kTileInputs / kEight * (kStripOutputs / kEight));

/// A tile by input a block.
template <Code kCode>
__global__ void __launch_bounds__(kThreads) widen_strips(const WidenTilesParams p) {
  cuda::start_after_previous();
  const CodeTiles& w = p.tiles;
  constexpr int kAcross = kTileInputs / kEight, kWords = kCode == Code::i4 ? 1 : 2;
  const int k = static_cast<int>(threadIdx.x) % kAcross * kEight,
            first = static_cast<int>(threadIdx.x) / kAcross * kEight;
  const int tile = blockIdx.x, to = blockIdx.y * kTileInputs + k;
  if (to >= p.inputs) return;
  const uint8_t* const at = w.data + (p.first + tile) * w.row_bytes() +
                            (p.begin / kTileInputs + blockIdx.y) * w.tile_bytes();
  unsigned words[kEight][kWords];
#pragma unroll
  for (int i = 0; i < kEight; ++i)
#pragma unroll
    for (int word = 0; word < kWords; ++word)
      words[i][word] = reinterpret_cast<const unsigned*>(
          at + (k + i) * w.strip_bytes())[first / kEight * kWords + word];
#pragma unroll
  for (int o = 0; o < kEight; ++o) {
    if (!w.is_output(p.first + tile, first + o)) return;
    const tiles::Scaling<kCode> scaling(w, at, k, first + o);
    union {
      __nv_bfloat162 twos[kEight / 2];
      __nv_bfloat16 ones[kEight];
      uint4 all;
    } v;
    constexpr int kEach = kEight / kWords;  // codes of a word
#pragma unroll
    for (int i = 0; i < kEight; i += 2)
      v.twos[i / 2] = __float22bfloat162_rn(scaling.numbers(
          tiles::codes_of<kCode>(words[i][o / kEach], words[i + 1][o / kEach], o % kEach)));
    auto* const out = reinterpret_cast<__nv_bfloat16*>(p.out) +
                      int64_t{tile * kStripOutputs + first + o} * p.inputs + to;
    if (p.inputs % kEight == 0) {
      *reinterpret_cast<uint4*>(out) = v.all;
    } else {
      for (int i = 0; i < kEight && to + i < p.inputs; ++i) out[i] = v.ones[i];
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
    Span<kCode>(w, id / kTileOutputs, row % 8, span).widen(w, row, [&](int i, float2 v) {
      if (i < n) out[i] = v.x;
      if (i + 1 < n) out[i + 1] = v.y;
    });
  } else {
    for (int i = 0; i < n; ++i) out[i] = given >= 0 && given < p.whole ? 0 : cuda::quiet_nan();
  }
}

}  // namespace

void widen_tiles_cuda(const WidenTilesParams& p, Stream stream) {
  if (p.n == 0) return;
  const bool by_input = p.tiles.by_input;
  const dim3 grid(static_cast<unsigned>(p.n),
                  by_input ? cuda::blocks_for(p.inputs, kTileInputs)
                           : cuda::blocks_for(spans_across(p.inputs) * 8, kThreads));
  const auto kernel =
      p.tiles.code == Code::i4   ? by_input ? widen_strips<Code::i4> : widen_tiles<Code::i4>
        : p.tiles.code == Code::i8 ? by_input ? widen_strips<Code::i8> : widen_tiles<Code::i8>
        : by_input ? widen_strips<Code::fp8>
                                 : widen_tiles<Code::fp8>;
  cuda::launch(kernel, grid, kThreads, stream, p);
}

void plain_codes_cuda(const PlainCodesParams& p, Stream stream) {
  if (p.n == 0) return;
  const dim3 grid(static_cast<unsigned>(p.n),
                  cuda::blocks_for(spans_across(p.tiles.in) * 8, kThreads));
  cuda::launch(plain_codes, grid, kThreads, stream, p);
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
