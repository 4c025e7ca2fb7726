#pragma once
// Pages of keys and values in 8 to 4 bits for tests on either device: references in double of
// kernels/lowbit/coded_pages.h, written from its formulas.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/code/code.h"
#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_pages.h"

namespace tandem::test {

inline constexpr CodedBits kAllCodedBits[] = {{8, 8}, {8, 4}, {6, 4}, {4, 4}};

/// Standard normal (Box and Muller).
inline double normal_number(PhiloxStream& stream) {
  const double radius = std::sqrt(-2 * std::log(1 - stream.uniform()));
  return radius * std::cos(6.283185307179586 * stream.uniform());
}

/// A frame of `axis_size` 1, or 0 for none, and a rotation.
struct CodedFrame {
  std::vector<float> center, axis, signs;
  CodedFrame(int d, uint32_t seed, double center_size = 2, bool has_axis = true)
      : center(static_cast<size_t>(d)),
        axis(static_cast<size_t>(d)),
        signs(static_cast<size_t>(2 * d)) {
    PhiloxStream stream(31, seed);
    double square = 0;
    for (float& a : axis) {
      a = static_cast<float>(normal_number(stream));
      square += double{a} * a;
    }
    for (float& a : axis) a = has_axis ? static_cast<float>(a / std::sqrt(square)) : 0.0f;
    for (float& c : center) c = static_cast<float>(center_size * normal_number(stream));
    for (float& s : signs) s = stream.uniform() < 0.5 ? -1.0f : 1.0f;
  }
};

/// Row r (d numbers) by the rotation, or back where `transposed`: sums over the matrix's rows.
class RotationMatrix {
 public:
  RotationMatrix(const std::vector<float>& signs, int d) : d_(d) {
    std::vector<float> rows(static_cast<size_t>(d) * static_cast<size_t>(d));
    for (int i = 0; i < d; ++i) rows[static_cast<size_t>(i * d + i)] = 0x1p20f;
    // Row i becomes the image of unit vector i, to f32; 2^20 leaves the digits as they are.
    rotate_rows_ref({.rows = rows.data(), .signs = signs.data(), .dims = d}, {0, d});
    for (const float x : rows) images_.push_back(double{x} / 0x1p20);
  }
  std::vector<double> rotate(const std::vector<double>& x) const {
    std::vector<double> y(x.size());
    for (int i = 0; i < d_; ++i)
      for (int c = 0; c < d_; ++c) y[size(c)] += x[size(i)] * images_[size(i * d_ + c)];
    return y;
  }
  std::vector<double> back(const std::vector<double>& y) const {
    std::vector<double> x(y.size());
    for (int i = 0; i < d_; ++i)
      for (int c = 0; c < d_; ++c) x[size(i)] += y[size(c)] * images_[size(i * d_ + c)];
    return x;
  }

 private:
  static size_t size(int i) { return static_cast<size_t>(i); }
  int d_;
  std::vector<double> images_;
};

/// A row's code in double.
struct CodeRef {
  std::vector<int> negative, cell, part;  // [d], parts of sixteen
  double e = 0, share = 0;

  int number(int bits, size_t c) const {
    const int n = code_number(bits, cell[c], bits == 4 ? 0 : part[c] >> (8 - bits));
    return negative[c] != 0 ? -n : n;
  }
  static double from(int j) { return static_cast<double>(kCellFrom[j]); }

  /// Codes a rotated row.
  CodeRef(const std::vector<double>& x, int bits)
      : negative(x.size()), cell(x.size()), part(x.size()) {
    double square = 0, product = 0;
    for (const double v : x) square += v * v;
    if (!std::isfinite(square)) e = std::nan("");
    if (!(square >= 0x1p-120) || !std::isfinite(square)) return;
    const double m = std::sqrt(square / static_cast<double>(x.size()));
    for (size_t c = 0; c < x.size(); ++c) {
      const double u = std::abs(x[c] / m);
      negative[c] = x[c] < 0 ? 1 : 0;
      while (cell[c] + 1 < kCells && u >= from(cell[c] + 1)) ++cell[c];
      const double width = from(cell[c] + 1) - from(cell[c]);
      part[c] = std::clamp(static_cast<int>(16 * (u - from(cell[c])) / width), 0, 15);
      product += x[c] * number(bits, c);
    }
    e = square / (product / code_unit(bits));
  }
  /// The least distance of a coordinate from a change of its code, in units of m.
  static double nearest(double u, int bits) {
    double least = std::abs(u);
    for (int j = 0; j < kCells; ++j)
      for (int i = 0; i < (bits == 4 ? 1 : 16); ++i)
        least = std::min(least, std::abs(std::abs(u) - from(j) - i * (from(j + 1) - from(j)) / 16));
    return least;
  }
};

/// One row, read bit by bit from the bytes of a page.
struct CodedRow {
  std::vector<int> numbers;  // whole
  std::vector<int> codes;    // sign, cell and part, as one number
  double e, share = 0;
  int unit;
};
inline CodedRow read_row(const uint8_t* page, const CodedLayout& l, int row, bool key) {
  const int bits = key ? l.bits.k : l.bits.v, plane = l.plane();
  const auto bit = [&](int b, int c) {
    const uint8_t* at = !key     ? page + l.values() + (bits * row + b) * plane
                        : b == 0 ? page + l.signs() + row * plane
                        : b < 4  ? page + l.cells() + (3 * row + b - 1) * plane
                                 : page + l.parts() + ((bits - 4) * row + b - 4) * plane;
    return at[c / 8] >> (c % 8) & 1;
  };
  CodedRow r{.numbers = {}, .codes = {}, .e = 0, .unit = code_unit(bits)};
  for (int c = 0; c < l.d; ++c) {
    int code = 0;
    for (int b = 0; b < bits; ++b) code = 2 * code + bit(b, c);
    const int part_bits = bits - 4, cell = code >> part_bits & 7;
    const int number = code_number(bits, cell, code & ((1 << part_bits) - 1));
    r.codes.push_back(code);
    r.numbers.push_back(code >> (bits - 1) != 0 ? -number : number);
  }
  const auto half = [&](int at) {
    f16 x;
    std::memcpy(&x, page + at, sizeof x);
    return double{to_float(x)};
  };
  r.e = half(key ? l.scales() + 4 * row : l.value_scales() + 2 * row);
  if (key) r.share = half(l.scales() + 4 * row + 2);
  return r;
}

/// Keys and values of a KV head in pages, coded.
struct CodedCase {
  CodedLayout layout;
  int n_pages, n_kv_heads = 2, kv_head = 1;
  CodedFrame frame;
  RotationMatrix rotation;
  std::vector<float> k, v;  // [pages, 64, d], page i of the sequence
  std::vector<int32_t> pages;
  std::vector<uint8_t> pool;

  CodedCase(CodedBits bits, int d, int n_pages_, uint32_t seed = 1)
      : layout{d, bits}, n_pages(n_pages_), frame(d, seed), rotation(frame.signs, d) {
    PhiloxStream stream(32, seed);
    const auto n = static_cast<size_t>(n_pages * kPageTokens * d);
    for (size_t i = 0; i < n; ++i) {
      const auto at = i % static_cast<size_t>(d);
      k.push_back(frame.center[at] + static_cast<float>(1.5 * normal_number(stream)));
      v.push_back(static_cast<float>(normal_number(stream)));
    }
    for (int i = 0; i < n_pages; ++i) pages.push_back((i * 5 + 3) % n_pages);
    pool.resize(static_cast<size_t>(n_pages * n_kv_heads) * page_size(), 0x5a);
  }
  size_t page_size() const { return static_cast<size_t>(layout.page_bytes()); }
  uint8_t* page(int i) {
    return pool.data() +
           static_cast<size_t>(pages[static_cast<size_t>(i)] * n_kv_heads + kv_head) * page_size();
  }
  int64_t at(int token) const { return int64_t{token} * layout.d; }
  CodedRowsParams rows(int i) {
    return {.page = page(i),
            .layout = layout,
            .k = k.data() + at(i * kPageTokens),
            .v = v.data() + at(i * kPageTokens),
            .dtype = DType::f32,
            .center = frame.center.data(),
            .axis = frame.axis.data(),
            .signs = frame.signs.data()};
  }
  void code(CodeRowsOfPageFn* fn) {
    for (int i = 0; i < n_pages; ++i) fn(rows(i), {0, kPageTokens});
  }
  /// The rotated row that is coded, and the share of a key.
  std::vector<double> rotated(int token, bool key, double& share) const {
    std::vector<double> x;
    share = 0;
    for (int c = 0; c < layout.d; ++c) {
      const auto i = static_cast<size_t>(at(token) + c), ci = static_cast<size_t>(c);
      x.push_back(key ? double{k[i]} - frame.center[ci] : double{v[i]});
      if (key) share += x.back() * frame.axis[ci];
    }
    for (int c = 0; c < layout.d; ++c)
      x[static_cast<size_t>(c)] -= share * frame.axis[static_cast<size_t>(c)];
    return rotation.rotate(x);
  }
  /// The row that a page's bytes stand for.
  std::vector<double> decoded(int token, bool key) {
    const CodedRow r = read_row(page(token / kPageTokens), layout, token % kPageTokens, key);
    std::vector<double> y;
    for (const int n : r.numbers) y.push_back(r.e * n / r.unit);
    std::vector<double> x = rotation.back(y);
    double share = r.share;
    for (size_t c = 0; c < x.size(); ++c) share -= x[c] * frame.axis[c];
    for (size_t c = 0; key && c < x.size(); ++c) x[c] += frame.center[c] + share * frame.axis[c];
    return x;
  }
};

}  // namespace tandem::test
