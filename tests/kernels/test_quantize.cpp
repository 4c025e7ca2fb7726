// Rows of weights in codes: golden codes, their errors, and the numbers that they stand for.
#include <bit>
#include <cstring>

#include "base/weight_format.h"
#include "gguf_bytes.h"
#include "io/file.h"
#include "io/json.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;
using io::Json;

namespace {

WeightFormat codes(Code code, int group, Zero zero, ScaleType scale = ScaleType::f16) {
  return {code, static_cast<int16_t>(group), scale, zero};
}

std::vector<WeightFormat> quantizer_formats() {
  std::vector<WeightFormat> all;
  for (const Code code : {Code::i4, Code::i8})
    for (const Zero zero : {Zero::none, Zero::integer})
      for (const int group : {0, 16, 32, 64, 128}) all.push_back(codes(code, group, zero));
  return all;
}

WeightFormat fp8(int group) { return codes(Code::fp8, group, Zero::none, ScaleType::f32); }

/// Rows of numbers and of codes; the codes begin at an odd address and end where the buffer does.
struct RowCase {
  WeightFormat format;
  int n_rows, width;
  std::vector<float> numbers;
  Buffer<uint8_t> rows;

  RowCase(const WeightFormat& f, int n, int in)
      : format(f),
        n_rows(n),
        width(in),
        numbers(static_cast<size_t>(n) * static_cast<size_t>(in)),
        rows(matrix_bytes(f, n, in), 1) {}

  QuantizeParams quantizing(bool search) {
    return {.out = rows.data(),
            .in = numbers.data(),
            .row_bytes = static_cast<int64_t>(row_bytes(format, width)),
            .width = width,
            .group = static_cast<int>(cut_unit(format, width)),
            .code = format.code,
            .zero = format.zero,
            .search = search};
  }
  DequantizeParams widening(void* out, DType to) {
    return {.out = out,
            .in = rows.data(),
            .row_bytes = static_cast<int64_t>(row_bytes(format, width)),
            .width = width,
            .group = static_cast<int>(cut_unit(format, width)),
            .code = format.code,
            .scale = format.scale,
            .zero = format.zero,
            .to = to};
  }
  /// Runs a body in two parts.
  std::vector<uint8_t> quantized(QuantizeFn* body, bool search) {
    std::ranges::fill(rows.memory, uint8_t{0xa5});
    body(quantizing(search), {n_rows / 2, n_rows});
    body(quantizing(search), {0, n_rows / 2});
    return {rows.data(), rows.data() + rows.size()};
  }
  std::vector<float> widened() {
    std::vector<float> out(numbers.size());
    cpu_table().dequantize(widening(out.data(), DType::f32), {0, n_rows});
    return out;
  }
  /// Squared error of the rows' codes in each group.
  std::vector<double> errors() {
    const std::vector<float> found = widened();
    const int group = static_cast<int>(cut_unit(format, width)), n = (width + group - 1) / group;
    std::vector<double> sums(static_cast<size_t>(n_rows * n));
    for (size_t i = 0; i < found.size(); ++i) {
      const int row = static_cast<int>(i) / width, at = static_cast<int>(i) % width / group;
      sums[static_cast<size_t>(row * n + at)] += std::pow(double{found[i]} - numbers[i], 2);
    }
    return sums;
  }
};

void fill_gaussian(std::vector<float>& x, double sigma) {
  PhiloxStream stream(17, 3);
  for (float& v : x) {
    const double r = std::sqrt(-2 * std::log(1 - stream.uniform()));
    v = static_cast<float>(sigma * r * std::cos(6.283185307179586 * stream.uniform()));
  }
}

RowCase gaussian_rows(const WeightFormat& format, int n_rows, int width) {
  RowCase c(format, n_rows, width);
  fill_gaussian(c.numbers, 0.03);
  return c;
}

double relative_rms(RowCase& c) {
  double error = 0, all = 0;
  for (const double e : c.errors()) error += e;
  for (const float v : c.numbers) all += double{v} * v;
  return std::sqrt(error / all);
}

std::vector<float> floats_from(const std::string& hex) {
  const std::string bytes = from_hex(hex);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// The row form of a golden case, from its codes, scales and zeros.
std::string golden_row(const Json& c) {
  const bool four = c.contains("u");
  const std::vector<int> code = c.at(four ? "u" : "q");
  const auto group = c.at("group").get<size_t>();
  const std::string scales = from_hex(c.at("scale_f16_hex"));
  std::string row;
  for (size_t g = 0; g < code.size() / group; ++g) {
    for (size_t i = g * group; i < (g + 1) * group; i += four ? 2 : 1)
      row += static_cast<char>(four ? code[i] | code[i + 1] << 4 : code[i]);
    row += scales.substr(2 * g, 2);
    if (c.contains("zero")) row += static_cast<char>(c.at("zero").at(g).get<int>());
  }
  return row;
}

}  // namespace

TEST_SUITE("kernels/quantize") {
  TEST_CASE("codes, scales and numbers are those of another quantizer, in every variant") {
    const Json golden = io::parse_json(
        io::read_file(source_dir() / "tests/data/golden/quantizer.json"), "quantizer.json");
    const std::vector<float> row = floats_from(golden.at("row_f32_hex"));
    REQUIRE(golden.at("cases").size() == 6);
    for (const Json& want : golden.at("cases")) {
      CAPTURE(want.at("kind").get<std::string>());
      RowCase c(codes(want.contains("u") ? Code::i4 : Code::i8, want.at("group"),
                      want.contains("zero") ? Zero::integer : Zero::none),
                1, static_cast<int>(row.size()));
      c.numbers = row;
      const std::string bytes = golden_row(want);
      for (const Isa isa : usable_isas()) {
        const std::vector<uint8_t> got = c.quantized(cpu_table(isa).quantize, false);
        CHECK(std::string(got.begin(), got.end()) == bytes);
        std::vector<float> numbers(row.size());
        cpu_table(isa).dequantize(c.widening(numbers.data(), DType::f32), {0, 1});
        CHECK(numbers == floats_from(want.at("values_f32_hex")));
      }
      const std::vector<uint8_t> got = c.quantized(quantize_ref, false);
      CHECK(std::string(got.begin(), got.end()) == bytes);
    }
  }

  TEST_CASE("every variant gives the same bytes; without search they are the reference's") {
    for (const WeightFormat& format : quantizer_formats())
      for (const int width : {1, 7, 15, 16, 31, 64, 130, 333, 512}) {
        CAPTURE(format_name(format));
        CAPTURE(width);
        RowCase c = gaussian_rows(format, 5, width);
        const std::vector<uint8_t> plain = c.quantized(quantize_ref, false),
                                   searched = c.quantized(quantize_scalar, true);
        for (const Isa isa : usable_isas()) {
          CAPTURE(isa_name(isa));
          CHECK(c.quantized(cpu_table(isa).quantize, false) == plain);
          CHECK(c.quantized(cpu_table(isa).quantize, true) == searched);
        }
      }
  }

  TEST_CASE("search makes no group worse, and is as good as the reference's in f64") {
    for (const WeightFormat& format : quantizer_formats())
      for (const int width : {17, 200, 1024}) {
        CAPTURE(format_name(format));
        CAPTURE(width);
        RowCase c = gaussian_rows(format, 20, width);
        c.quantized(cpu_table().quantize, false);
        const std::vector<double> plain = c.errors();
        c.quantized(quantize_ref, true);
        const std::vector<double> best = c.errors();
        c.quantized(cpu_table().quantize, true);
        const std::vector<double> found = c.errors();
        int worse = 0, off = 0;
        double plain_sum = 0, found_sum = 0;
        for (size_t g = 0; g < plain.size(); ++g) {
          worse += found[g] > plain[g] * (1 + 1e-5) ? 1 : 0;
          off += found[g] > best[g] * (1 + 1e-5) ? 1 : 0;
          plain_sum += plain[g];
          found_sum += found[g];
        }
        CHECK(worse == 0);
        CHECK(off == 0);
        CHECK(found_sum < plain_sum);
      }
  }

  TEST_CASE("errors of Gaussian weights are those of the format") {
    struct Want {
      WeightFormat format;
      double plain, searched;  // relative rms; the margin is 2 %
    };
    // plain: 512 x 2048 numbers by an independent quantizer. searched: at most.
    for (const Want& want : {Want{codes(Code::i4, 32, Zero::none), 0.086, 0.086},
                             Want{codes(Code::i4, 128, Zero::none), 0.1035, 0.101},
                             Want{codes(Code::i4, 32, Zero::integer), 0.081, 0.078},
                             Want{codes(Code::i4, 64, Zero::integer), 0.091, 0.089},
                             Want{codes(Code::i4, 128, Zero::integer), 0.100, 0.096},
                             Want{codes(Code::i8, 32, Zero::none), 0.0054, 0.0054},
                             Want{codes(Code::i8, 128, Zero::none), 0.0065, 0.0065},
                             Want{codes(Code::i8, 0, Zero::none), 0.0082, 0.0083},
                             Want{fp8(0), 0.0265, 0.027}, Want{fp8(32), 0.0241, 0.0246}}) {
      CAPTURE(format_name(want.format));
      RowCase c = gaussian_rows(want.format, 128, 2048);
      c.quantized(cpu_table().quantize, false);
      CHECK(relative_rms(c) == doctest::Approx(want.plain).epsilon(0.02));
      c.quantized(cpu_table().quantize, true);
      CHECK(relative_rms(c) < want.searched);
    }
  }

  TEST_CASE("groups of zeros, rows shorter than a group, and scales at the ends of f16") {
    for (const WeightFormat& format : quantizer_formats())
      for (const Isa isa : usable_isas())
        for (const bool search : {false, true}) {
          CAPTURE(format_name(format));
          CAPTURE(isa_name(isa));
          const auto numbers_of = [&](std::vector<float> row) {
            RowCase c(format, 1, static_cast<int>(row.size()));
            c.numbers = std::move(row);
            c.quantized(cpu_table(isa).quantize, search);
            return c.widened();
          };
          CHECK(numbers_of(std::vector<float>(40, 0.0f)) == std::vector<float>(40, 0.0f));
          CHECK(numbers_of(std::vector<float>(40, -1e-9f)) == std::vector<float>(40, 0.0f));
          CHECK(numbers_of({-0.0f, 0.0f}) == std::vector<float>(2, 0.0f));
          // The only weight of a group has an error from the scale's rounding only.
          for (const float one : {3.0f, -3.0f, 0.015625f}) {
            const std::vector<float> found = numbers_of({one});
            CHECK(std::abs(found[0] - one) <= std::abs(one) * 0x1p-9f);
          }
          for (const float v : numbers_of({1e30f, -1e30f, 1.0f})) CHECK(std::isfinite(v));
        }
  }

  TEST_CASE("fp8 codes are the reference's, from the least subnormal to 448, in every variant") {
    for (const int group : {0, 32, 128})
      for (const int width : {1, 7, 64, 130, 512}) {
        CAPTURE(group);
        CAPTURE(width);
        RowCase c = gaussian_rows(fp8(group), 6, width);
        // Magnitudes over 2^20, some of them halfway between two codes.
        for (size_t i = 0; i < c.numbers.size(); ++i) {
          float& x = c.numbers[i];
          x = std::ldexp(x, -static_cast<int>(i % 21));
          if (i % 3 == 0) x = std::ldexp(std::round(std::ldexp(x, 12)), -12);
          if (i / static_cast<size_t>(width) == 2) x = 0;
        }
        const std::vector<uint8_t> want = c.quantized(quantize_ref, false);
        for (const Isa isa : usable_isas())
          for (const bool search : {false, true})
            CHECK(c.quantized(cpu_table(isa).quantize, search) == want);
        const std::vector<float> found = c.widened();
        for (int row = 0; row < c.n_rows; ++row) {
          const size_t unit = static_cast<size_t>(cut_unit(c.format, width));
          for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
            const size_t at = static_cast<size_t>(row * width) + i, first = at - i % unit;
            const size_t end = std::min(first + unit, static_cast<size_t>((row + 1) * width));
            float most = 0;
            for (size_t j = first; j < end; ++j) most = std::max(most, std::abs(c.numbers[j]));
            const float least = most / 448 * 0x1p-10f;
            CHECK(std::abs(found[at] - c.numbers[at]) <=
                  1.001f * std::max(std::abs(c.numbers[at]) / 16, least));
          }
        }
      }
  }

  TEST_CASE("a short last group is filled with the code of 0") {
    RowCase c(codes(Code::i4, 16, Zero::integer), 1, 19);
    c.numbers.assign(19, 1.0f);
    c.numbers[18] = -1.0f;
    const std::vector<uint8_t> row = c.quantized(cpu_table().quantize, false);
    REQUIRE(row.size() == 2 * (8 + 3));
    const int zero = row[21];
    CHECK(zero == 8);
    for (size_t i = 13; i < 19; ++i) CHECK(row[i] == 17 * zero);
    CHECK(row[12] / 16 == zero);
  }
}

TEST_SUITE("kernels/dequantize") {
  TEST_CASE("numbers are the rounded ones of f64 arithmetic, for every format and variant") {
    PhiloxStream stream(5, 1);
    for (const Code code : {Code::i4, Code::i8})
      for (const ScaleType scale : {ScaleType::f16, ScaleType::bf16})
        for (const Zero zero : {Zero::none, Zero::integer, Zero::minimum})
          for (const int group : {0, 16, 32, 64, 128})
            for (const int width : {1, 9, 16, 130, 257}) {
              const WeightFormat format = codes(code, group, zero, scale);
              CAPTURE(format_name(format));
              CAPTURE(width);
              RowCase c(format, 3, width);
              for (uint8_t& byte : c.rows.memory) byte = static_cast<uint8_t>(stream.next());
              // Scales and minima of common sizes: exponents of f16 and bf16 that are not extreme.
              const auto unit = static_cast<size_t>(cut_unit(format, width));
              const size_t n_codes = code == Code::i4 ? (unit + 1) / 2 : unit;
              const size_t bytes = n_codes + (zero == Zero::none      ? 2u
                                              : zero == Zero::integer ? 3u
                                                                      : 4u);
              for (size_t at = n_codes; at < c.rows.size(); at += bytes)
                for (size_t i = at; i < at + (zero == Zero::minimum ? 4u : 2u); i += 2) {
                  const float x = random_float(stream, 0.1f);
                  const uint16_t bits = scale == ScaleType::f16 ? to_f16(x).bits : to_bf16(x).bits;
                  std::memcpy(c.rows.data() + i, &bits, 2);
                }
              for (const DType to : {DType::f32, DType::bf16}) {
                ActBuffer want(to, c.numbers.size());
                dequantize_ref(c.widening(want.data(), to), {0, 3});
                for (const Isa isa : usable_isas()) {
                  CAPTURE(isa_name(isa));
                  ActBuffer got(to, c.numbers.size(), 1);
                  cpu_table(isa).dequantize(c.widening(got.data(), to), {1, 3});
                  cpu_table(isa).dequantize(c.widening(got.data(), to), {0, 1});
                  REQUIRE_CLOSE(got, want, ([](size_t) { return 0.0; }));
                }
              }
            }
  }

  TEST_CASE("every fp8 code is its number times the scale, in every variant") {
    for (const ScaleType type : {ScaleType::f32, ScaleType::f16, ScaleType::bf16})
      for (const int width : {256, 250}) {
        RowCase c(codes(Code::fp8, 0, Zero::none, type), 1, width);
        const float scale = type == ScaleType::f32 ? 0.3f : 0.375f;
        for (int i = 0; i < width; ++i)
          c.rows.data()[i] = (i & 0x7f) == 0x7f ? uint8_t{0} : static_cast<uint8_t>(i);
        const uint16_t half = type == ScaleType::f16 ? to_f16(scale).bits : to_bf16(scale).bits;
        if (type == ScaleType::f32)
          std::memcpy(c.rows.data() + width, &scale, sizeof scale);
        else
          std::memcpy(c.rows.data() + width, &half, sizeof half);
        std::vector<float> want(static_cast<size_t>(width)), got(want), ref(want);
        for (size_t i = 0; i < want.size(); ++i) want[i] = scale * fp8_number(c.rows.data()[i]);
        dequantize_ref(c.widening(ref.data(), DType::f32), {0, 1});
        CHECK(ref == want);
        for (const Isa isa : usable_isas()) {
          cpu_table(isa).dequantize(c.widening(got.data(), DType::f32), {0, 1});
          CHECK(got == want);
        }
      }
  }

  TEST_CASE("halves of a byte, signs and zeros are where the row form puts them") {
    const auto numbers = [](const WeightFormat& format, const std::vector<uint8_t>& row) {
      RowCase c(format, 1, 2);
      std::ranges::copy(row, c.rows.data());
      REQUIRE(c.rows.size() == row.size());
      return c.widened();
    };
    // f16: 0x3800 is 0.5, 0xc200 is -3.
    CHECK(numbers(codes(Code::i4, 0, Zero::none), {0xf1, 0x00, 0x38}) == std::vector{-3.5f, 3.5f});
    CHECK(numbers(codes(Code::i4, 0, Zero::integer), {0xf1, 0x00, 0x38, 3}) ==
          std::vector{-1.0f, 6.0f});
    CHECK(numbers(codes(Code::i4, 0, Zero::minimum), {0xf1, 0x00, 0x38, 0x00, 0xc2}) ==
          std::vector{-2.5f, 4.5f});
    CHECK(numbers(codes(Code::i8, 0, Zero::none), {0x80, 0x7f, 0x00, 0x38}) ==
          std::vector{-64.0f, 63.5f});
    CHECK(numbers(codes(Code::i8, 0, Zero::integer), {0x80, 0x7f, 0x00, 0x38, 0xfe}) ==
          std::vector{-63.0f, 64.5f});
    CHECK(numbers(codes(Code::i8, 0, Zero::minimum), {0x80, 0x7f, 0x00, 0x38, 0x00, 0xc2}) ==
          std::vector{-67.0f, 60.5f});
  }
}
