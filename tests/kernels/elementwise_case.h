#pragma once
// Shared by the tests of rms_norm and silu_mul on CPU and GPU.
#include <cmath>

#include "kernels/variants.h"

namespace tandem::test {

inline constexpr DType kActs[] = {DType::f32, DType::bf16};
/// Below this a store may flush to zero, and the quick exponential's reciprocal may lose bits.
inline constexpr double kTiny = 0x1p-126;

/// Runs check(isa, act, width, offset) over all of them.
template <class Widths, class Check>
void over_grid(const Widths& widths, const Check& check) {
  for (const Isa isa : usable_isas())
    for (const DType act : kActs)
      for (const int width : widths)
        for (const size_t offset : {0u, 1u, 3u}) {
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(act));
          CAPTURE(width);
          CAPTURE(offset);
          check(isa, act, width, offset);
        }
}

/// Three rows and their reference.
struct RmsNormCase {
  static constexpr int kRows = 3;
  DType act;
  int dim;
  Buffer<float> x, weight;
  ActBuffer want;

  RmsNormCase(DType t, int n, size_t offset)
      : act(t),
        dim(n),
        x(static_cast<size_t>(kRows * n), offset),
        weight(static_cast<size_t>(n), offset),
        want(t, x.size()) {
    PhiloxStream stream(1, static_cast<uint32_t>(n));
    fill(x, stream, 3.0f);
    fill(weight, stream, 2.0f);
    rms_norm_ref(params(want), {0, kRows});
  }
  RmsNormParams params(ActBuffer& out) {
    return {.out = out.data(),
            .x = x.data(),
            .weight = weight.data(),
            .n_rows = kRows,
            .dim = dim,
            .eps = 1e-5f,
            .act = act};
  }
  /// A sum in at least four chains has dim/4 half-spacings of error, the root halves it; four more
  /// operations follow, and the result is rounded to act.
  void require_close(ActBuffer& got) {
    const double relative = spacing(act) + (dim / 16.0 + 4) * spacing(DType::f32);
    REQUIRE_CLOSE(got, want,
                  ([&](size_t i) { return relative * std::abs(double{want.get(i)}) + kTiny; }));
  }
};

/// exp is within one spacing, its argument exact; sum, quotient, product.
inline double silu_tolerance(DType act, float want) {
  return (spacing(act) + 4 * spacing(DType::f32)) * std::abs(double{want}) + kTiny;
}

/// Two rows and their reference.
struct SiluMulCase {
  static constexpr int kRows = 2;
  DType act;
  int width;
  ActBuffer gate_up, want;

  SiluMulCase(DType t, int n, size_t offset)
      : act(t),
        width(n),
        gate_up(t, static_cast<size_t>(2 * kRows * n), offset),
        want(t, static_cast<size_t>(kRows * n)) {
    PhiloxStream stream(3, static_cast<uint32_t>(n));
    fill(gate_up, stream, 20.0f);
    silu_mul_ref(params(want), {0, kRows});
  }
  SiluMulParams params(ActBuffer& out) {
    return {.out = out.data(),
            .gate_up = gate_up.data(),
            .n_rows = kRows,
            .ffn_dim = width,
            .act = act};
  }
  void require_close(ActBuffer& got) {
    REQUIRE_CLOSE(got, want, ([&](size_t i) { return silu_tolerance(act, want.get(i)); }));
  }
};

}  // namespace tandem::test
