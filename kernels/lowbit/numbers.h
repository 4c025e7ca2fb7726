#pragma once
// Bits of planes as vectors of numbers, and back. Included by ISA files only.
#include "kernels/lowbit/cells.h"
#include "kernels/lowbit/coded_pages.h"
#include "kernels/simd/vec.h"

namespace tandem {

float to_float(f16 x);  // of base/convert.h
f16 to_f16(float x);

namespace {

using simd::Mask;
using simd::Vec;

/// Bits c .. c + lanes - 1 of a plane.
TANDEM_INLINE uint32_t bits_at(const uint8_t* plane, int c) {
  if constexpr (Vec::kLanes == 16) return plane[c / 8] | uint32_t{plane[c / 8 + 1]} << 8;
  if constexpr (Vec::kLanes == 8) return plane[c / 8];
  return (plane[c / 8] >> c % 8) & 1u;
}
TANDEM_INLINE void put_bits(uint8_t* plane, int c, uint32_t bits) {
  if constexpr (Vec::kLanes == 1) {
    const auto bit = static_cast<uint8_t>(1u << c % 8);
    plane[c / 8] = static_cast<uint8_t>(bits != 0 ? plane[c / 8] | bit : plane[c / 8] & ~bit);
  } else {
    for (int i = 0; i < Vec::kLanes / 8; ++i)
      plane[c / 8 + i] = static_cast<uint8_t>(bits >> 8 * i);
  }
}

/// One of eight numbers by three masks, the most significant first.
template <class T>
TANDEM_INLINE Vec pick(const T (&of)[8], Mask a, Mask b, Mask c) {
  const auto two = [&](int i) {
    return simd::select(c, simd::set1(static_cast<float>(of[i + 1])),
                        simd::set1(static_cast<float>(of[i])));
  };
  return simd::select(a, simd::select(b, two(6), two(4)), simd::select(b, two(2), two(0)));
}

/// floor(x).
TANDEM_INLINE Vec floor_of(Vec x) {
  const Vec whole = simd::round(x);
  return simd::select(simd::lt(x, whole), whole - simd::set1(1), whole);
}

constexpr int kWidths[8] = {kEdges[1] - kEdges[0], kEdges[2] - kEdges[1], kEdges[3] - kEdges[2],
                            kEdges[4] - kEdges[3], kEdges[5] - kEdges[4], kEdges[6] - kEdges[5],
                            kEdges[7] - kEdges[6], kEdges[8] - kEdges[7]};
constexpr int kFirsts[8] = {kEdges[0], kEdges[1], kEdges[2], kEdges[3],
                            kEdges[4], kEdges[5], kEdges[6], kEdges[7]};

/// The magnitudes in whole numbers, 46ths, or with parts 736ths: `part` divides a cell by 2^bits.
TANDEM_INLINE Vec magnitude(Mask a, Mask b, Mask c, Vec part, int bits) {
  if (bits == 0) return pick(kLevels, a, b, c);
  const float half = 1.0f / static_cast<float>(2 << bits);
  const Vec offset = (part + part + simd::set1(1)) * pick(kWidths, a, b, c) * simd::set1(half);
  return pick(kFirsts, a, b, c) + floor_of(offset);
}

/// Planes of a row: where the sign is, where the cell, where the parts.
struct Planes {
  const uint8_t *sign, *cell, *part;
  int plane, bits;  // bytes of a plane; planes of parts
};

TANDEM_INLINE Planes key_planes(const uint8_t* page, const CodedLayout& l, int t) {
  const int plane = l.plane(), bits = l.bits.k - 4;
  return {page + l.signs() + t * plane, page + l.cells() + t * 3 * plane,
          page + l.parts() + t * bits * plane, plane, bits};
}
TANDEM_INLINE Planes value_planes(const uint8_t* page, const CodedLayout& l, int t) {
  const int plane = l.plane();
  const uint8_t* row = page + l.values() + t * l.bits.v * plane;
  return {row, row + plane, row + 4 * plane, plane, l.bits.v - 4};
}

/// Numbers c .. of a row.
TANDEM_INLINE Vec numbers_at(const Planes& p, int c) {
  const auto mask = [&](const uint8_t* plane) { return simd::mask_of_bits(bits_at(plane, c)); };
  Vec part = simd::zero();
  for (int i = 0; i < p.bits; ++i)
    part = part + part + simd::select(mask(p.part + i * p.plane), simd::set1(1), simd::zero());
  const Vec y =
      magnitude(mask(p.cell), mask(p.cell + p.plane), mask(p.cell + 2 * p.plane), part, p.bits);
  return simd::select(mask(p.sign), simd::zero() - y, y);
}

TANDEM_INLINE float unit_of(int parts) { return parts == 0 ? kLevelUnit : kEdgeUnit; }

}  // namespace
}  // namespace tandem
