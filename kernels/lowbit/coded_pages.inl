#include "kernels/lowbit/coded_pages.h"

#include <string.h>

#include "kernels/code/code.h"
#include "kernels/lowbit/numbers.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kMostDim = 512;

/// The sum of products in eight parts.
float dot(const float* x, const float* y, int d) {
  float s[8] = {};
  for (int c = 0; c < d; c += 8)
    for (int k = 0; k < 8; ++k) s[k] += x[c + k] * y[c + k];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

template <class T>
void read_row(const void* rows, int t, int d, float* x) {
  const T* row = static_cast<const T*>(rows) + int64_t{t} * d;
  for (int c = 0; c < d; ++c) x[c] = to_f32(row[c]);
}

void read_row(const void* rows, DType dtype, int t, int d, float* x) {
  if (dtype == DType::f32)
    read_row<float>(rows, t, d, x);
  else
    read_row<bf16>(rows, t, d, x);
}

void put_f16(uint8_t* to, float x) {
  const f16 rounded = to_f16(x);
  memcpy(to, &rounded, sizeof rounded);
}

/// Planes to write, as Planes are to read.
struct PlanesOut {
  uint8_t *sign, *cell, *part;
  int plane, bits;
};

/// Codes rotated x; returns e.
float code(const float* x, int d, const PlanesOut& p) {
  const float square = dot(x, x, d);
  const bool is_finite = square - square == 0;
  if (!is_finite || square < kLeastNorm * kLeastNorm) {
    memset(p.sign, 0, static_cast<size_t>(p.plane));
    memset(p.cell, 0, static_cast<size_t>(3 * p.plane));
    if (p.bits > 0) memset(p.part, 0, static_cast<size_t>(p.bits * p.plane));
    return is_finite ? 0.0f : __builtin_nanf("");
  }
  const float m = __builtin_sqrtf(square / static_cast<float>(d));
  alignas(64) float y[kMostDim];
  for (int c = 0; c < d; c += kW) {
    const Vec value = load(x + c);
    const uint32_t negative = bits_of(lt(value, zero()));
    const Vec u = abs(value) / set1(m);
    uint32_t from[9] = {};  // bits of magnitudes in cell j or above
    const uint32_t all = bits_of(lt(zero(), set1(1)));
    for (int j = 1; j < 8; ++j) from[j] = all & ~bits_of(lt(u, set1(kCells[j])));
    const uint32_t a = from[4], b = (from[2] & ~from[4]) | from[6],
                   low =
                       (from[1] & ~from[2]) | (from[3] & ~from[4]) | (from[5] & ~from[6]) | from[7];
    put_bits(p.sign, c, negative);
    put_bits(p.cell, c, a);
    put_bits(p.cell + p.plane, c, b);
    put_bits(p.cell + 2 * p.plane, c, low);
    const Mask ma = mask_of_bits(a), mb = mask_of_bits(b), mc = mask_of_bits(low);
    Vec part = zero();
    if (p.bits > 0) {
      const float steps = static_cast<float>(1 << p.bits);
      float first[8], inverse[8];
      for (int j = 0; j < 8; ++j) {
        first[j] = kCells[j];
        inverse[j] = steps / (kCells[j + 1] - kCells[j]);
      }
      part = floor_of((u - pick(first, ma, mb, mc)) * pick(inverse, ma, mb, mc));
      part = min(max(part, zero()), set1(steps - 1));
      Vec rest = part;
      for (int i = 0; i < p.bits; ++i) {
        const float weight = static_cast<float>(1 << (p.bits - 1 - i));
        const uint32_t bits = all & ~bits_of(lt(rest, set1(weight)));
        put_bits(p.part + i * p.plane, c, bits);
        rest = select(mask_of_bits(bits), rest - set1(weight), rest);
      }
    }
    const Vec number = magnitude(ma, mb, mc, part, p.bits);
    store(y + c, select(mask_of_bits(negative), zero() - number, number));
  }
  return square / (dot(x, y, d) * unit_of(p.bits));
}

}  // namespace

void TANDEM_ISA_FN(code_page)(const CodePageParams& p, Range tokens) {
  const CodedLayout& l = p.layout;
  const int plane = l.plane(), d = l.d, k_parts = l.bits.k - 4;
  alignas(64) float x[kMostDim];
  const auto rotate = [&] { TANDEM_ISA_FN(rotate_rows)({x, p.signs, d}, {0, 1}); };
  for (int t = tokens.begin; t < tokens.end; ++t) {
    if (p.k != nullptr) {
      read_row(p.k, p.dtype, t, d, x);
      for (int c = 0; c < d; ++c) x[c] -= p.center[c];
      const float share = dot(x, p.axis, d);
      for (int c = 0; c < d; ++c) x[c] -= share * p.axis[c];
      rotate();
      const float e = code(x, d,
                           {p.page + l.signs() + t * plane, p.page + l.cells() + t * 3 * plane,
                            p.page + l.parts() + t * k_parts * plane, plane, k_parts});
      put_f16(p.page + l.scales() + 4 * t, e);
      put_f16(p.page + l.scales() + 4 * t + 2, share);
    }
    if (p.v != nullptr) {
      read_row(p.v, p.dtype, t, d, x);
      rotate();
      uint8_t* const row = p.page + l.values() + t * l.bits.v * plane;
      const float e = code(x, d, {row, row + plane, row + 4 * plane, plane, l.bits.v - 4});
      put_f16(p.page + l.value_scales() + 2 * t, e);
    }
  }
}

namespace {

template <class T>
void write_row(void* rows, int t, int d, const float* x) {
  T* row = static_cast<T*>(rows) + int64_t{t} * d;
  for (int c = 0; c < d; ++c) store1(row + c, x[c]);
}

void write_row(void* rows, DType dtype, int t, int d, const float* x) {
  if (dtype == DType::f32)
    write_row<float>(rows, t, d, x);
  else
    write_row<bf16>(rows, t, d, x);
}

float f16_at(const uint8_t* from) {
  f16 x;
  memcpy(&x, from, sizeof x);
  return to_float(x);
}

}  // namespace

void TANDEM_ISA_FN(widen_page)(const WidenPageParams& p, Range tokens) {
  const CodedLayout& l = p.layout;
  const int d = l.d;
  alignas(64) float x[kMostDim];
  const auto decode = [&](const Planes& planes, float e) {
    for (int c = 0; c < d; c += kW)
      store(x + c, numbers_at(planes, c) * set1(e * unit_of(planes.bits)));
    TANDEM_ISA_FN(rotate_rows_back)({x, p.signs, d}, {0, 1});
  };
  for (int t = tokens.begin; t < tokens.end; ++t) {
    if (p.k != nullptr) {
      decode(key_planes(p.page, l, t), f16_at(p.page + l.scales() + 4 * t));
      const float share = f16_at(p.page + l.scales() + 4 * t + 2);
      for (int c = 0; c < d; ++c) x[c] += p.center[c] + share * p.axis[c];
      write_row(p.k, p.dtype, t, d, x);
    }
    if (p.v != nullptr) {
      decode(value_planes(p.page, l, t), f16_at(p.page + l.value_scales() + 2 * t));
      write_row(p.v, p.dtype, t, d, x);
    }
  }
}

}  // namespace tandem
