#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "gguf_bytes.h"
#include "train/export/export_packed.h"

using namespace tandem;
using test::from_hex;

namespace {

/// Values of public programs; tests/data/golden/README.md names them.
const io::Json& golden() {
  static const io::Json all = io::parse_json(
      io::read_file(test::source_dir() / "tests/data/golden/folders.json"), "folders.json");
  return all;
}

template <class T>
std::vector<T> values_of(const std::string& hex) {
  const std::string bytes = from_hex(hex);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct Golden {
  int64_t out, in, groups;
  std::vector<uint32_t> words, zero_words;
  std::vector<float> weights, scales;

  explicit Golden(const char* name) {
    const io::Json& j = golden()[name];
    out = j["weight_shape"][0], in = j["weight_shape"][1], groups = j["weight_scale_shape"][1];
    words = values_of<uint32_t>(j["weight_packed_i32_le_hex"]);
    weights = values_of<float>(j["weight_out_in_f32_hex"]);
    for (const uint16_t bits : values_of<uint16_t>(j["weight_scale_bf16_hex"]))
      scales.push_back(to_float(bf16{bits}));
    if (j.contains("weight_zero_point_i32_le_hex"))
      zero_words = values_of<uint32_t>(j["weight_zero_point_i32_le_hex"]);
  }
  float scale(int64_t row, int64_t g) const {
    return scales[static_cast<size_t>(row * groups + g)];
  }
  /// Zero of a group, by the definition of the format: 8 rows a word.
  int zero(int64_t row, int64_t g) const {
    return static_cast<int>(zero_words[static_cast<size_t>(row / 8 * groups + g)] >> 4 * (row % 8) &
                            15);
  }
  /// Weight over scale, a whole number.
  int steps(int64_t row, int64_t k) const {
    return static_cast<int>(
        std::lround(weights[static_cast<size_t>(row * in + k)] / scale(row, k / (in / groups))));
  }
};

void append_scale(std::vector<std::byte>& row, float scale) {
  const f16 half = to_f16(scale);
  CHECK(to_float(half) == scale);
  row.resize(row.size() + sizeof(half));
  std::memcpy(row.data() + row.size() - sizeof(half), &half, sizeof(half));
}

struct Parts {
  std::vector<std::byte> words, scales;
  std::vector<uint8_t> zeros;

  Parts(const Golden& g, const WeightFormat& format, const std::vector<std::byte>& rows)
      : words(g.words.size() * 4), scales(g.scales.size() * 2) {
    REQUIRE(rows.size() == matrix_bytes(format, g.out, g.in));
    train::split_codes(format, g.in, g.out, rows.data(), words.data(), scales.data(), zeros);
    CHECK(std::memcmp(words.data(), g.words.data(), words.size()) == 0);
    for (size_t i = 0; i < g.scales.size(); ++i) {
      f16 half;
      std::memcpy(&half, scales.data() + 2 * i, 2);
      CHECK(to_float(half) == g.scales[i]);
    }
  }
};

}  // namespace

TEST_SUITE("train/export-packed") {
  TEST_CASE("int4 with zeros: words, scales and zeros along rows are compressed-tensors' own") {
    const Golden g("ct_pack_4_asym_g32");
    const WeightFormat format{Code::i4, 32, ScaleType::f16, Zero::integer};
    std::vector<std::byte> rows;
    for (int64_t row = 0; row < g.out; ++row)
      for (int64_t group = 0; group < g.groups; ++group) {
        const auto code = [&](int64_t k) {
          const int u = g.steps(row, 32 * group + k) + g.zero(row, group);
          CHECK((u >= 0 && u <= 15));
          return static_cast<uint8_t>(u);
        };
        for (int64_t k = 0; k < 32; k += 2)
          rows.push_back(static_cast<std::byte>(code(k) | code(k + 1) << 4));
        append_scale(rows, g.scale(row, group));
        rows.push_back(static_cast<std::byte>(g.zero(row, group)));
      }
    const Parts parts(g, format, rows);
    CHECK(train::pack_zeros(parts.zeros, g.out, g.groups) == g.zero_words);
  }

  TEST_CASE("int8 without zeros: words hold codes plus 128") {
    const Golden g("ct_pack_8_sym_channel_in36");
    const WeightFormat format{Code::i8, 36, ScaleType::f16, Zero::none};
    std::vector<std::byte> rows;
    for (int64_t row = 0; row < g.out; ++row) {
      for (int64_t k = 0; k < g.in; ++k)
        rows.push_back(static_cast<std::byte>(static_cast<int8_t>(g.steps(row, k))));
      append_scale(rows, g.scale(row, 0));
    }
    CHECK(Parts(g, format, rows).zeros.empty());
  }
}
