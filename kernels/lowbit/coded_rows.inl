#include "kernels/code/rotation.h"
#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_pages.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace coded {
namespace {

using namespace simd;

constexpr int kStep = 16;  // coordinates of two bytes of every plane
constexpr int kVecs = kStep / kW;
constexpr float kLeastSquare = 0x1p-120f;

/// The planes of one row, the most significant first.
template <class Byte>
struct Planes {
  Byte* at[8];
  int n;
};

template <class Byte>
Planes<Byte> planes_of_key(Byte* page, const CodedLayout& l, int row) {
  Planes<Byte> planes{.at = {}, .n = l.bits.k};
  planes.at[0] = page + l.signs() + row * l.plane();
  for (int b = 1; b < 4; ++b) planes.at[b] = page + l.cells() + (3 * row + b - 1) * l.plane();
  for (int b = 4; b < l.bits.k; ++b)
    planes.at[b] = page + l.parts() + ((l.bits.k - 4) * row + b - 4) * l.plane();
  return planes;
}

template <class Byte>
Planes<Byte> planes_of_value(Byte* page, const CodedLayout& l, int row) {
  Planes<Byte> planes{.at = {}, .n = l.bits.v};
  for (int b = 0; b < l.bits.v; ++b)
    planes.at[b] = page + l.values() + (l.bits.v * row + b) * l.plane();
  return planes;
}

void put_f16(uint8_t* to, float x) {
  f16 lanes[kW];
  store(lanes, set1(x));
  __builtin_memcpy(to, lanes, sizeof(f16));
}
float get_f16(const uint8_t* from) {
  f16 lanes[kW] = {};
  __builtin_memcpy(lanes, from, sizeof(f16));
  float x[kW];
  simd::store(x, load(lanes));
  return x[0];
}

float sum(const float* x, int n) {
  float s[8] = {};
  for (int c = 0; c < n; c += 8)
    for (int i = 0; i < 8; ++i) s[i] += x[c + i];
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) s[i] += s[i + half];
  return s[0];
}
float dot(const float* x, const float* y, int n) {
  float products[kMostCodedDims];
  for (int c = 0; c < n; ++c) products[c] = x[c] * y[c];
  return sum(products, n);
}

template <class T>
void widen(float* to, const T* from, int n) {
  for (int c = 0; c < n; c += kW) store(to + c, load(from + c));
}
void widen(float* to, const void* rows, DType dtype, int row, int d) {
  if (dtype == DType::f32)
    widen(to, static_cast<const float*>(rows) + row * d, d);
  else
    widen(to, static_cast<const bf16*>(rows) + row * d, d);
}

/// Each plane's bits of a vector's lanes, and |x| * number to `products`.
TANDEM_INLINE void code_vector(Vec x, Vec to_units, int n_planes, uint32_t* bits, float* products) {
  const Vec u = abs(x * to_units);
  Mask below[kCells];
  for (int j = 1; j < kCells; ++j) below[j] = lt(u, set1(kCellFrom[j]));
  uint32_t from[kCells];  // bit set: in this cell or above it
  for (int j = 1; j < kCells; ++j) from[j] = ~bits_of(below[j]) & ((1u << kW) - 1u);
  bits[0] = bits_of(lt(x, zero()));
  bits[1] = from[4];
  bits[2] = (from[2] & ~from[4]) | from[6];
  bits[3] = (from[1] & ~from[2]) | (from[3] & ~from[4]) | (from[5] & ~from[6]) | from[7];
  const auto of_cell = [&](auto value) {
    Vec v = set1(value(kCells - 1));
    for (int j = kCells - 1; j > 0; --j) v = select(below[j], set1(value(j - 1)), v);
    return v;
  };
  Vec number;
  if (n_planes == 4) {
    number = of_cell([](int j) { return static_cast<float>(kCellNumber[j]); });
  } else {
    const Vec begin = of_cell([](int j) { return kCellFrom[j]; });
    const Vec per_width = of_cell([](int j) { return 16.0f / (kCellFrom[j + 1] - kCellFrom[j]); });
    Vec left = (u - begin) * per_width, part = zero();
    for (int b = 4; b < n_planes; ++b) {
      const float size = static_cast<float>(1 << (7 - b));
      const Mask under = lt(left, set1(size));
      bits[b] = ~bits_of(under) & ((1u << kW) - 1u);
      const Vec taken = select(under, zero(), set1(size));
      left = left - taken;
      part = part + taken;
    }
    // In whole numbers of a part, 31 / 64 less before rounding: cut to the one below.
    const Vec middle = part + set1(n_planes == 8 ? 0.5f : 2.0f);
    const Vec first = of_cell([](int j) { return static_cast<float>(kCellEnd[j]); });
    const Vec width =
        of_cell([](int j) { return static_cast<float>(kCellEnd[j + 1] - kCellEnd[j]) / 16; });
    number = first + round(middle * width - set1(31.0f / 64));
  }
  store(products, abs(x) * number);
}

/// The planes of a rotated row; returns e.
float code_row(const float* x, int d, const Planes<uint8_t>& planes) {
  const float square = dot(x, x, d);
  const bool finite = square < __builtin_inff();
  if (!finite || square < kLeastSquare) {
    for (int b = 0; b < planes.n; ++b)
      __builtin_memset(planes.at[b], 0, static_cast<size_t>(d) / 8);
    return finite ? 0 : __builtin_nanf("");
  }
  const Vec to_units = set1(__builtin_sqrtf(static_cast<float>(d)) / __builtin_sqrtf(square));
  float products[kMostCodedDims];
  for (int c = 0; c < d; c += kStep) {
    uint32_t bits[8] = {};
    for (int i = 0; i < kVecs; ++i) {
      uint32_t of_vector[8];
      code_vector(load(x + c + i * kW), to_units, planes.n, of_vector, products + c + i * kW);
      for (int b = 0; b < planes.n; ++b) bits[b] |= of_vector[b] << (i * kW);
    }
    for (int b = 0; b < planes.n; ++b) {
      planes.at[b][c / 8] = static_cast<uint8_t>(bits[b]);
      planes.at[b][c / 8 + 1] = static_cast<uint8_t>(bits[b] >> 8);
    }
  }
  return static_cast<float>(code_unit(planes.n)) * square / sum(products, d);
}

void code_key(const CodedRowsParams& p, int row) {
  const int d = p.layout.d;
  float x[kMostCodedDims];
  widen(x, p.k, p.dtype, row, d);
  for (int c = 0; c < d; ++c) x[c] -= p.center[c];
  float share = dot(x, p.axis, d);
  for (int c = 0; c < d; ++c) x[c] -= share * p.axis[c];
  rotate_row(x, p.signs, d);
  const float e = code_row(x, d, planes_of_key(p.page, p.layout, row));
  if (e != e) share = 0;
  uint8_t* scale = p.page + p.layout.scales() + 4 * row;
  put_f16(scale, e);
  put_f16(scale + 2, share);
}

void code_value(const CodedRowsParams& p, int row) {
  float x[kMostCodedDims];
  widen(x, p.v, p.dtype, row, p.layout.d);
  rotate_row(x, p.signs, p.layout.d);
  const float e = code_row(x, p.layout.d, planes_of_value(p.page, p.layout, row));
  put_f16(p.page + p.layout.value_scales() + 2 * row, e);
}

/// The rotated row of planes and a scale, rotated back.
void widen_row(float* x, const Planes<const uint8_t>& planes, float e, const float* signs, int d) {
  const float unit = e / static_cast<float>(code_unit(planes.n));
  for (int c = 0; c < d; ++c) {
    int code = 0;
    for (int b = 1; b < planes.n; ++b) code = 2 * code + (planes.at[b][c / 8] >> (c % 8) & 1);
    const int n_parts = 1 << (planes.n - 4);
    const int number = code_number(planes.n, code / n_parts, code % n_parts);
    const bool negative = (planes.at[0][c / 8] >> (c % 8) & 1) != 0;
    x[c] = unit * static_cast<float>(negative ? -number : number);
  }
  rotate_row_back(x, signs, d);
}

void put_row(void* rows, DType dtype, int row, const float* x, int d) {
  for (int c = 0; c < d; c += kW)
    if (dtype == DType::f32)
      store(static_cast<float*>(rows) + row * d + c, load(x + c));
    else
      store(static_cast<bf16*>(rows) + row * d + c, load(x + c));
}

}  // namespace
}  // namespace coded

void TANDEM_ISA_FN(code_rows_of_page)(const CodedRowsParams& p, Range rows) {
  using namespace coded;
  for (int row = rows.begin; row < rows.end; ++row) {
    if (p.k != nullptr) code_key(p, row);
    if (p.v != nullptr) code_value(p, row);
  }
}

void TANDEM_ISA_FN(widen_coded_rows)(const WidenCodedRowsParams& p, Range rows) {
  using namespace coded;
  const CodedLayout& l = p.layout;
  float x[kMostCodedDims];
  for (int row = rows.begin; row < rows.end; ++row) {
    if (p.k != nullptr) {
      const uint8_t* scale = p.page + l.scales() + 4 * row;
      widen_row(x, planes_of_key(p.page, l, row), get_f16(scale), p.signs, l.d);
      const float share = get_f16(scale + 2) - dot(x, p.axis, l.d);
      for (int c = 0; c < l.d; ++c) x[c] = (x[c] + share * p.axis[c]) + p.center[c];
      put_row(p.k, p.dtype, row, x, l.d);
    }
    if (p.v != nullptr) {
      const float e = get_f16(p.page + l.value_scales() + 2 * row);
      widen_row(x, planes_of_value(p.page, l, row), e, p.signs, l.d);
      put_row(p.v, p.dtype, row, x, l.d);
    }
  }
}

void TANDEM_ISA_FN(prepare_coded_queries)(const CodedQueriesParams& p, Range queries) {
  using namespace coded;
  const int d = p.layout.d;
  const float to_exponents = p.scale * kLog2E;
  float x[kMostCodedDims];
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    const float* q = p.q + i * d;
    const float share = dot(q, p.axis, d);
    for (int c = 0; c < d; ++c) x[c] = q[c] - share * p.axis[c];
    rotate_row(x, p.signs, d);
    float most = 0;
    for (int c = 0; c < d; ++c) most = __builtin_fabsf(x[c]) > most ? __builtin_fabsf(x[c]) : most;
    // To the largest of sixteen bits whose upper and lower half are int8. Numbers of a key have a
    // norm of at most 1.27 sqrt(d) units, so that sums of products stay below 2^31.
    float step = most / 32512;
    if (p.layout.bits.k > 4) {
      const float norm = __builtin_sqrtf(dot(x, x, d)) * __builtin_sqrtf(static_cast<float>(d));
      const float least = norm * (1.27f * 736 / 0x1p31f);
      step = least > step ? least : step;
    }
    const float to_steps = step > 0x1p-120f ? 1 / step : 0;
    for (int c = 0; c < d; c += kW) {
      float rounded[kW];
      store(rounded, round(load(x + c) * set1(to_steps)));
      for (int lane = 0; lane < kW; ++lane)
        p.numbers[i * d + c + lane] =
            rounded[lane] == rounded[lane] ? static_cast<int16_t>(rounded[lane]) : int16_t{0};
    }
    p.gains[i] = {.sum = to_exponents * step / static_cast<float>(code_unit(p.layout.bits.k)),
                  .share = to_exponents * share,
                  .offset = to_exponents * dot(q, p.center, d)};
  }
}

}  // namespace tandem
