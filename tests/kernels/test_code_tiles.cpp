#include <cmath>
#include <set>

#include "kernels/coded_case.h"
#include "kernels/linear/code_tiles.h"
#include "ops/quantizing.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Code (row, k) of a tile, by the layout's words.
int code_in_tile(const uint8_t* tile, Code code, int row, int k) {
  const int inputs = code == Code::i4 ? 64 : 32, in = k % inputs;
  const int g = row % 8, high = row / 8, lane = 4 * g + in % 8 / 2;
  const uint8_t* const words = tile + k / inputs * kPieceBytes + lane * 16;
  if (code != Code::i4) return words[in / 8 * 4 + 2 * (in % 2) + high];
  const int nibble = high + 2 * (in / 8 % 2) + 4 * (in % 2);
  return words[in / 16 * 4 + nibble / 2] >> (nibble % 2 * 4) & 15;
}

float scale_in_tile(const uint8_t* at, ScaleType type) {
  float wide = 0;
  uint16_t bits = 0;
  if (type == ScaleType::f32)
    std::memcpy(&wide, at, sizeof wide);
  else
    std::memcpy(&bits, at, sizeof bits);
  return type == ScaleType::f32   ? wide
         : type == ScaleType::f16 ? to_float(f16{bits})
                                  : to_float(bf16{bits});
}

float weight_in_tile(const CodeTiles& t, const uint8_t* tile, int row, int k) {
  const int place = k / t.unit() * kTileOutputs + row;
  const float scale = scale_in_tile(tile + t.scales_at() + place * t.scale_bytes(), t.scale);
  const uint8_t* const zero = tile + t.zeros_at() + place * t.zero_bytes();
  const int code = code_in_tile(tile, t.code, row, k);
  if (t.code == Code::fp8) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return scale * static_cast<float>(code & 128 ? -size : size);
  }
  float number = static_cast<float>(t.code == Code::i4 ? code : code - 128);
  if (t.zero == Zero::none && t.code == Code::i4) number -= 8;
  if (t.zero == Zero::integer)
    number -= t.code == Code::i4 ? static_cast<float>(*zero)
                                 : static_cast<float>(static_cast<int8_t>(*zero));
  const float least = t.zero == Zero::minimum ? scale_in_tile(zero, t.scale) : 0;
  return scale * number + least;
}

CodeTiles tiles_for(const CodedCase& c) {
  const bool two_level = c.m.two_level();
  return {.out = c.out,
          .in = c.m.in,
          .group = c.m.group,
          .code = two_level && c.m.code != Code::i4 ? Code::i8 : c.m.code,
          .scale = two_level ? ScaleType::f16 : c.m.scale,
          .zero = c.m.zero};
}

}  // namespace

TEST_SUITE("kernels/code_tiles") {
  TEST_CASE("tiles hold the weights of rows in every format, and nothing past them") {
    for (const int in : {64, 200, 512})
      for (const CodedMatrix& m : coded_formats(in))
        for (const bool paired : {false, true}) {
          const CodedCase c(m, 44, 1);
          CAPTURE(format_name(format_of(m)));
          CAPTURE(in);
          CAPTURE(paired);
          CodeTiles t = tiles_for(c);
          t.paired = paired;
          std::vector<uint8_t> tiles(static_cast<size_t>(t.down() * t.row_bytes()), 0xa5);
          const auto row_size = static_cast<int64_t>(c.codes.size()) / c.out;
          place_codes({.to = tiles.data(),
                       .tiles = t,
                       .rows = c.codes.data(),
                       .row_bytes = row_size,
                       .row_code = m.code,
                       .row_scale = m.scale,
                       .first = 0,
                       .n = t.down()},
                      {0, t.down()});
          std::vector<float> weights(static_cast<size_t>(c.out) * static_cast<size_t>(in));
          ops::dequantize(weights.data(), DType::f32, c.codes.data(), format_of(m), c.out, in);
          double worst = 0;
          std::set<int> placed;
          for (int down = 0; down < t.down(); ++down)
            for (int r = 0; r < kTileOutputs; ++r)
              for (int k = 0; k < t.across() * kTileInputs; ++k) {
                const uint8_t* const tile =
                    tiles.data() + down * t.row_bytes() + k / kTileInputs * t.tile_bytes();
                const float got = weight_in_tile(t, tile, r, k % kTileInputs);
                if (!t.is_output(down, r)) {
                  CHECK(got == 0);
                  continue;
                }
                if (k >= in) continue;
                const int o = t.place(0, t.down(), down, r);
                placed.insert(o);
                const float want = weights[static_cast<size_t>(o) * static_cast<size_t>(in) +
                                           static_cast<size_t>(k)];
                worst = std::max(worst, double{std::abs(got - want)});
              }
          CHECK(placed.size() == 44);
          // Scales of two levels are rounded to f16, at most 127 * 0.01 for codes up to 63.
          CHECK(worst <= (m.two_level() ? 127 * 0.01 * 63 * 0x1p-10 : 1e-6));
        }
  }
}
