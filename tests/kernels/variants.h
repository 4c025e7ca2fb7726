#pragma once
// Shared by the tests of kernels: the ISAs of this CPU, seeded numbers, buffers at an offset.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/cpu_table.h"

namespace tandem::test {

/// Every ISA whose variants this CPU can run.
inline std::vector<Isa> usable_isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(isa_detected()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

/// Distance from 1 to the next number: two roundings of one value differ by at most this share.
inline double spacing(DType t) { return t == DType::bf16 ? 0x1p-7 : 0x1p-23; }

/// Exactly `n` elements behind `offset` unused ones, so that the address is not that of a vector
/// register and the sanitizer sees any access past the end.
template <class T>
struct Buffer {
  std::vector<T> memory;
  size_t offset;
  explicit Buffer(size_t n, size_t at = 0) : memory(n + at), offset(at) {}
  T* data() { return memory.data() + offset; }
  size_t size() const { return memory.size() - offset; }
  T& operator[](size_t i) { return memory[offset + i]; }
};

/// Numbers of a type chosen at run time, read and written as f32.
struct ActBuffer {
  DType type;
  Buffer<float> f32;
  Buffer<bf16> half;
  ActBuffer(DType t, size_t n, size_t at = 0)
      : type(t), f32(t == DType::f32 ? n : 0, at), half(t == DType::bf16 ? n : 0, at) {}
  void* data() { return type == DType::f32 ? static_cast<void*>(f32.data()) : half.data(); }
  float get(size_t i) { return type == DType::f32 ? f32[i] : to_float(half[i]); }
  void set(size_t i, float x) {
    if (type == DType::f32)
      f32[i] = x;
    else
      half[i] = to_bf16(x);
  }
  size_t size() const { return type == DType::f32 ? f32.size() : half.size(); }
};

/// Uniform in [-range, range).
inline float random_float(PhiloxStream& stream, float range) {
  return static_cast<float>((2 * stream.uniform() - 1) * range);
}
inline void fill(ActBuffer& b, PhiloxStream& stream, float range) {
  for (size_t i = 0; i < b.size(); ++i) b.set(i, random_float(stream, range));
}
inline void fill(Buffer<float>& b, PhiloxStream& stream, float range) {
  for (size_t i = 0; i < b.size(); ++i) b[i] = random_float(stream, range);
}

/// Index of the element furthest beyond |got - want| <= tolerance(i), or -1.
template <class Tolerance>
int64_t worst_excess(ActBuffer& got, ActBuffer& want, const Tolerance& tolerance) {
  int64_t worst = -1;
  double excess = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double over = std::abs(double{got.get(i)} - want.get(i)) - tolerance(i);
    if (over > excess || std::isnan(over)) {
      excess = over;
      worst = static_cast<int64_t>(i);
    }
  }
  return worst;
}

}  // namespace tandem::test

/// Requires agreement within tolerance(i); prints the worst element and both values.
#define REQUIRE_CLOSE(got, want, tolerance)                                    \
  do {                                                                         \
    const int64_t worst_ = ::tandem::test::worst_excess(got, want, tolerance); \
    CAPTURE(worst_);                                                           \
    if (worst_ >= 0) {                                                         \
      CAPTURE((got).get(static_cast<size_t>(worst_)));                         \
      CAPTURE((want).get(static_cast<size_t>(worst_)));                        \
      REQUIRE(worst_ == -1);                                                   \
    }                                                                          \
  } while (false)
