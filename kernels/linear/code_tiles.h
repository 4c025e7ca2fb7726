#pragma once
// Weights in codes as products on a GPU read them. No STL.
#include "base/types.h"

#ifdef __CUDACC__
#define TANDEM_BOTH __host__ __device__
#else
#define TANDEM_BOTH
#endif

namespace tandem {

inline constexpr int kTileOutputs = 16;    // outputs of a tile
inline constexpr int kStripOutputs = 128;  // outputs of a tile by input
inline constexpr int kTileInputs = 128;    // inputs of a tile
inline constexpr int kPieceBytes = 512;    // codes in 16 bytes for each lane of a warp

/// A matrix [out, in] of codes in tiles of 16 outputs and 128 inputs.
/// layout   [tiles down][tiles across], each with its codes, then scales [units][16], then zeros
///          [units][16]. A unit is the inputs of a tile that share a scale. Zeros pad the last
///          tiles. Codes are pieces of 64 inputs (i4) or 32 inputs (i8, fp8), with 4 words for
///          each lane. Let g be lane / 4 and t be lane % 4. Word s of i4 belongs to inputs 16 s to
///          16 s + 15. Its half bytes j and 4 + j are output g + 8 (j % 2), inputs 2 t + 8 (j / 2)
///          and the next. Word 2 s + h of the others belongs to inputs 16 s + 8 h + 2 t and the
///          next. Its bytes 0 and 2 are output g, bytes 1 and 3 output g + 8. i8 bytes are
///          code + 128.
/// strips   Tiles by input have kStripOutputs outputs. Their codes are strips, one for each input,
///          of outputs in order. The first of two half bytes is in the last bits. Scales follow as
///          above.
/// source   fragments of mma.sync (PTX ISA, m16n8k16)
struct CodeTiles {
  const uint8_t* data = nullptr;  // aligned to 16 bytes
  int out = 0, in = 0;
  int group = 0;  // inputs that share a scale: 16, 32, 64 or a multiple of 128; 0: all
  Code code = Code::i4;
  ScaleType scale = ScaleType::f16;
  Zero zero = Zero::none;
  /// The first 8 outputs of a tile are of the first half of the matrix, the others of the second.
  bool paired = false;
  /// Products read listed inputs only. Never `paired`.
  bool by_input = false;

  /// Outputs of a tile, and from a row of tiles to the next.
  TANDEM_BOTH constexpr int outputs_of_tile() const {
    return by_input ? kStripOutputs : kTileOutputs;
  }
  TANDEM_BOTH constexpr int step() const { return paired ? 8 : outputs_of_tile(); }
  TANDEM_BOTH constexpr int strip_bytes() const {
    return code == Code::i4 ? kStripOutputs / 2 : kStripOutputs;
  }
  TANDEM_BOTH constexpr int across() const { return (in + kTileInputs - 1) / kTileInputs; }
  TANDEM_BOTH constexpr int down() const {
    return ((paired ? out / 2 : out) + step() - 1) / step();
  }
  TANDEM_BOTH constexpr int unit() const {
    return group == 0 || group > kTileInputs ? kTileInputs : group;
  }
  /// kTileInputs / unit(), without a division.
  TANDEM_BOTH constexpr int units() const {
    const int n = unit();
    return n == 16 ? 8 : n == 32 ? 4 : n == 64 ? 2 : 1;
  }
  TANDEM_BOTH constexpr int scale_bytes() const { return scale == ScaleType::f32 ? 4 : 2; }
  TANDEM_BOTH constexpr int zero_bytes() const {
    return zero == Zero::none ? 0 : zero == Zero::integer ? 1 : scale_bytes();
  }
  TANDEM_BOTH constexpr int pieces() const { return code == Code::i4 ? 2 : 4; }
  /// Scales and zeros begin at these bytes of a tile, which ends at a multiple of 16.
  TANDEM_BOTH constexpr int scales_at() const {
    return by_input ? kTileInputs * strip_bytes() : pieces() * kPieceBytes;
  }
  TANDEM_BOTH constexpr int zeros_at() const {
    return scales_at() + units() * outputs_of_tile() * scale_bytes();
  }
  TANDEM_BOTH constexpr int tile_bytes() const {
    return zeros_at() + units() * outputs_of_tile() * zero_bytes();
  }
  /// Bytes for the outputs of a row of tiles.
  TANDEM_BOTH constexpr int64_t row_bytes() const { return int64_t{across()} * tile_bytes(); }

  /// False for rows of a tile that pad it.
  TANDEM_BOTH constexpr bool is_output(int tile, int r) const {
    return paired ? tile * 8 + r % 8 < out / 2 : tile * step() + r < out;
  }
  /// Outputs that rows of tiles [first, first + n) hold; if `paired`, of the first half.
  TANDEM_BOTH constexpr int outputs(int first, int n) const {
    const int left = (paired ? out / 2 : out) - first * step();
    return left < n * step() ? left : n * step();
  }
  /// The place of row r of tile `first` + i among the outputs of n rows of tiles from `first` on.
  /// If `paired`, outputs of the second half follow those of the first.
  TANDEM_BOTH constexpr int place(int first, int n, int i, int r) const {
    return paired ? i * 8 + r % 8 + (r < 8 ? 0 : outputs(first, n)) : i * step() + r;
  }
};

/// Codes of 5 and 6 bits become 8 bits, and scales of two levels f16, which rounds them.
struct PlaceCodesParams {
  uint8_t* to;  // rows of tiles [first, first + n)
  CodeTiles tiles;
  const uint8_t* rows;  // these outputs by `place`, in the form of base/weight_format.h
  int64_t row_bytes;
  Code row_code;
  ScaleType row_scale;
  int first, n;
};

/// Places rows of codes in tiles, on a CPU. Work items are rows of tiles.
/// errors   none (preconditions checked by ops)
void place_codes(const PlaceCodesParams&, Range tiles);

struct QuantizeTilesParams {
  uint8_t* to;      // rows of tiles [first, first + n)
  CodeTiles tiles;  // i4 or i8 with f16 scales and no or an integer zero, or fp8 with f32 scales;
                    // not by input
  const void* numbers;  // [outputs, in] by `place`; may be pinned memory of the host
  DType type;           // bf16 or f32
  bool search;
  int first, n;
  int* refused;  // gets `number` if one of the numbers is NaN or infinite; may be pinned memory
  int number;
};

/// Turns numbers into tiles on a GPU: the bytes of `quantize` and place_codes.
/// cost     reads each number once
void quantize_tiles_cuda(const QuantizeTilesParams&, Stream);
/// True if two rows of a group fit the shared memory of a block.
bool quantize_tiles_fits(const CodeTiles&, DType type);

struct WidenTilesParams {
  bf16* out;  // [outputs, inputs] of these rows of tiles, by `place`
  CodeTiles tiles;
  int first, n;       // rows of tiles
  int begin, inputs;  // begin is a multiple of kTileInputs
};

/// Turns tiles into numbers on a GPU, with the bits of `dequantize`.
void widen_tiles_cuda(const WidenTilesParams&, Stream);

struct PlainCodesParams {
  uint8_t* codes;   // [outputs, in] of these rows of tiles, by `place`
  float* scales;    // [outputs / height][in / group][height]
  CodeTiles tiles;  // fp8, in a multiple of 16
  int first, n;     // rows of tiles
  int height;       // outputs
};

/// Takes the codes and scales of fp8 out of tiles on a GPU.
void plain_codes_cuda(const PlainCodesParams&, Stream);

struct EmbedTilesParams {
  float* out;  // [n_rows, in]
  CodeTiles table;
  const int32_t* ids;  // [n_rows]
  int n_rows;
  int first, whole;  // as EmbedParams'
};

/// `embed` for a table of codes.
void embed_tiles_cuda(const EmbedTilesParams&, Stream);

}  // namespace tandem
