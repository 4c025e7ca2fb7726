#include <cmath>
#include <set>
#include <string_view>

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

int code_in_strip(const uint8_t* strip, Code code, int row) {
  return code == Code::i4 ? strip[row / 2] >> (row % 2 * 4) & 15 : strip[row];
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
  const int place = k / t.unit() * t.outputs_of_tile() + row;
  const float scale = scale_in_tile(tile + t.scales_at() + place * t.scale_bytes(), t.scale);
  const uint8_t* const zero = tile + t.zeros_at() + place * t.zero_bytes();
  const int code = t.by_input ? code_in_strip(tile + k * t.strip_bytes(), t.code, row)
                              : code_in_tile(tile, t.code, row, k);
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
  const bool is_wide = c.m.code == Code::i5 || c.m.code == Code::i6;
  return {.out = c.out,
          .in = c.m.in,
          .group = c.m.group,
          .code = is_wide ? Code::i8 : c.m.code,
          .scale = c.m.two_level() ? ScaleType::f16 : c.m.scale,
          .zero = c.m.zero};
}

/// A tile of 16 outputs and 64 inputs that mma.sync multiplied exactly on an H100: its codes, a
/// digit each, and the words of 32 lanes.
constexpr std::string_view kCodesOfTile =
    "64464332d93f067da26e82af720af2b23c9f47d0ad768922a9471340b3849955"
    "56fe7880c68ee3e5694578cfc34c06726c02c49fbf679f702b7c8d38f549ccae"
    "fce3c0cbed0bc98a0dfdb5dcf46cbd8e7ad37d087150ff1b948117d22a9a2c17"
    "8d4576af1766edfd5d280033c61af0e003769c68dca51b56e1404a09b013f563"
    "fb96de76b42f39ffb01e84d4e2c490c1efa245b2328bc4221e503e146c7638d8"
    "4e2e6be9d3cac42a3146631a31b726f5adefde64760555a4d2a7038407e42be5"
    "15e2cc77849e094c10f0e9dd7fdb8df1c468e4a6044fa2df456436202940d53d"
    "3b777b6f57b2f3c906e4c4082655847eb6cc1a61e1d997e099f1c6e1576af256"
    "7f1b934010a87b2b11eb0099267e8a392b50586767c2fcd6e7f2544ea93f0838"
    "2100e2a51f122b8cfb3f24c5f857431bb1f76255b3f4a96034c7e99aad75794a"
    "6f77633667b6cb1b4cb2bef99ae32e941c087256337bb4e21a6a44a5ec0e94d3"
    "1440c51cae2cf6ae2c21e3cf0705eac1f89ea6a68223b5184ed5699113543f8f"
    "8d7c8c8ee69496678ca03e1b2432576d1bde36bdfb95220a4f681ed1629bf60e"
    "93478964c235294ee855eb988d20a72b806749d7f1cf4869c1fa969b8fe95bf0"
    "995f074928f6529321d8741dfff37bc254703c57cb2cad072f6eaf3bf270a5d8"
    "1bda72ee55cee309baf007e4d06e5b89e8b622d2845688eb00883bfe0e6dee6a";
constexpr std::string_view kWordsOfTile =
    "761df4091a271262236abc7deaab799314a3b68fe670beea59c70f26f43827f4"
    "947033b6088f02a254f887c951094389432702bd9a3b9f926dd270624435e085"
    "251c16f6f6fcb983b6bb1c3f32af4bd50f180e2e3454f57cf0f67247c7747c59"
    "e72e28b3274048366ca9249fe87c9d9ca88e50c5cc175fb259675f00934aa8ae"
    "6f6efc7d409fcda41737ca3119e2a4ca7eb0736bbfe62d3c0d7583b06809a1ea"
    "6ccc30b9bb2be5ed77bf2d4f4192474c3c186bbafd989c4e50e1682badd15237"
    "18a14de7250ccd76f08d832c4e1be130442605c62201185a972ae635d4515043"
    "c7fe566de0ef30a0a9b16c5b643f9af51aafcfedc3cef310a6156886908619f3"
    "8febdb648b2ec0421ef3bfb24166fe2c7992c64fa13c0e24da98e25b659780b6"
    "8d93ce693859e470342c652413f3ee68876fe67f1d6cb4d1bb02d2a2d10d14e8"
    "94cd3e23e38381d18af70d16cd8012f7423c7e5a542b56076ec07ff5faeea794"
    "862c9b94e6a2b3764d459e85905263bb6e4249ea912f8ab5d66a749498feb405"
    "9128958421f710ff5cc044b424f2f5295ef9f26edffd803b762408cf6674e400"
    "0c507c297e7849bd3eaac4d2a3adf6554794973c1dcfdd215a0d767f32d3b08d"
    "1355bb57b0d2a606eb8e8641090509e7d7cba7e2fe6504e5bc5d6c698f6681da"
    "77ef2b330c5874b421892a873cefb6e2e60cef99e087489ed6ee21b0fe65e1a6";

uint8_t digit(char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

}  // namespace

TEST_SUITE("kernels/code_tiles") {
  TEST_CASE("codes of 4 bits lie as tensor cores were seen to take them") {
    const WeightFormat format(Code::i4, 0, ScaleType::f16, Zero::none);
    const CodeTiles t{.out = 16, .in = 64, .group = 0, .code = Code::i4};
    std::vector<uint8_t> rows;
    for (size_t o = 0; o < 16; ++o) {
      for (size_t k = 0; k < 64; k += 2)
        rows.push_back(static_cast<uint8_t>(digit(kCodesOfTile[o * 64 + k]) |
                                            digit(kCodesOfTile[o * 64 + k + 1]) << 4));
      rows.insert(rows.end(), 2, 0);  // a scale
    }
    std::vector<uint8_t> tile(static_cast<size_t>(t.row_bytes()));
    place_codes({.to = tile.data(),
                 .tiles = t,
                 .rows = rows.data(),
                 .row_bytes = static_cast<int64_t>(row_bytes(format, 64)),
                 .row_code = format.code,
                 .row_scale = format.scale,
                 .first = 0,
                 .n = 1},
                {0, 1});
    REQUIRE(kWordsOfTile.size() == 2 * kPieceBytes);
    for (size_t i = 0; i < kPieceBytes; ++i)
      CHECK(tile[i] == (digit(kWordsOfTile[2 * i]) << 4 | digit(kWordsOfTile[2 * i + 1])));
  }

  TEST_CASE("tiles hold the weights of rows in every format, and nothing past them") {
    for (const int in : {64, 200, 512})
      for (const CodedMatrix& m : coded_formats(in))
        for (const std::string_view layout : {"plain", "paired", "by input"}) {
          const CodedCase c(m, 140, 1);
          CAPTURE(format_name(format_of(m)));
          CAPTURE(in);
          CAPTURE(layout);
          CodeTiles t = tiles_for(c);
          t.paired = layout == "paired";
          t.by_input = layout == "by input";
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
            for (int r = 0; r < t.outputs_of_tile(); ++r)
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
          CHECK(placed.size() == 140);
          // Scales of two levels are rounded to f16, at most 127 * 0.01 for codes up to 63.
          CHECK(worst <= (m.two_level() ? 127 * 0.01 * 63 * 0x1p-10 : 1e-6));
        }
  }
}
