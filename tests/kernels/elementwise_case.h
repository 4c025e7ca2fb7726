#pragma once
// Shared by the tests of rms_norm and gate_mul on CPU and GPU.
#include <algorithm>
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

/// Options of rms_norm.
struct NormForm {
  float scale = 1;
  bool weighted = true, adds = false;
};
inline constexpr NormForm kNormForms[] = {{},
                                          {.scale = 0.3f},
                                          {.scale = 1.7f, .weighted = false},
                                          {.scale = 0.3f, .adds = true},
                                          {.scale = 0.6f, .weighted = false, .adds = true}};

/// Three rows and their reference; outputs begin as ones.
struct RmsNormCase {
  static constexpr int kRows = 3;
  DType act;
  int dim;
  NormForm form;
  Buffer<float> x, weight;
  ActBuffer want;

  RmsNormCase(DType t, int n, size_t offset, const NormForm& f = {})
      : act(t),
        dim(n),
        form(f),
        x(static_cast<size_t>(kRows * n), offset),
        weight(static_cast<size_t>(n), offset),
        want(output(0)) {
    PhiloxStream stream(1, static_cast<uint32_t>(n));
    fill(x, stream, 3.0f);
    fill(weight, stream, 2.0f);
    rms_norm_ref(params(want), {0, kRows});
  }
  ActBuffer output(size_t offset) const {
    ActBuffer out(act, x.size(), offset);
    for (size_t i = 0; i < out.size(); ++i) out.set(i, 1.0f);
    return out;
  }
  RmsNormParams params(ActBuffer& out) {
    return {.out = out.data(),
            .x = x.data(),
            .weight = form.weighted ? weight.data() : nullptr,
            .n_rows = kRows,
            .dim = dim,
            .eps = 1e-5f,
            .act = act,
            .scale = form.scale,
            .adds = form.adds};
  }
  /// A sum in at least four chains has dim/4 half-spacings of error, the root halves it; four more
  /// operations follow, and the result is rounded to act.
  void require_close(ActBuffer& got) {
    const double relative = spacing(act) + (dim / 16.0 + 4) * spacing(DType::f32);
    REQUIRE_CLOSE(got, want, ([&](size_t i) {
                    return relative * (std::abs(double{want.get(i)}) + 2 * form.adds) + kTiny;
                  }));
  }
};

inline constexpr Gate kGates[] = {Gate::silu, Gate::gelu_tanh, Gate::gelu, Gate::relu};

/// The gate as transformers writes it, in double.
inline double plain_gate(Gate gate, double g) {
  if (gate == Gate::silu) return g / (1 + std::exp(-g));
  if (gate == Gate::gelu) return g / 2 * (1 + std::erf(g / std::sqrt(2.0)));
  if (gate == Gate::relu) return std::max(g, 0.0);
  return 0.5 * g * (1 + std::tanh(std::sqrt(2 / 3.141592653589793) * (g + 0.044715 * g * g * g)));
}

/// The error that the rounded argument of exp leaves in a result: gelu_tanh's errs by two spacings,
/// and where exp overflows the result may be 0 instead of 1e-35. The argument of gelu is about
/// g (1.6 + |g| / 2), and errs by 16 spacings up to |g| = 9.5.
inline double gate_argument_error(Gate gate, double g, double want) {
  if (gate == Gate::silu || gate == Gate::relu) return 0;  // the argument is g, or exact
  if (gate == Gate::gelu)
    return 16 * spacing(DType::f32) * std::abs(g * (1.6 + std::abs(g) / 2) * want) + 1e-17;
  const double z = std::sqrt(8 / 3.141592653589793) * (g + 0.044715 * g * g * g);
  return 2 * spacing(DType::f32) * std::abs(z * want) + (z < -88 ? 1e-35 : 0);
}

/// The gate of a sum that errs by `error`, with a quick exponential, and what that errs by.
struct GateOfSum {
  double value, error;
};
inline GateOfSum gate_of_sum(Gate gate, double sum, double error) {
  const double value = plain_gate(gate, sum);
  // Slopes of silu reach 1.1, those of gelu_tanh 1.13; the exponential is good to 2^-20 of |z| + 1.
  return {value, (gate == Gate::silu ? 1.1 : 1.13) * error +
                     0x1p-20 * (1 + std::abs(sum)) * std::abs(sum) +
                     4 * gate_argument_error(gate, sum, value)};
}

/// exp is within one spacing; sum, quotient, product.
inline double gate_mul_tolerance(DType act, float want, Gate gate = Gate::silu, double g = 0) {
  return (spacing(act) + 4 * spacing(DType::f32)) * std::abs(double{want}) + kTiny +
         gate_argument_error(gate, g, want);
}

/// Two rows and their reference.
struct GateMulCase {
  static constexpr int kRows = 2;
  DType act;
  int width;
  Gate gate;
  ActBuffer gate_up, want;

  GateMulCase(DType t, int n, size_t offset, Gate of = Gate::silu)
      : act(t),
        width(n),
        gate(of),
        gate_up(t, static_cast<size_t>(2 * kRows * n), offset),
        want(t, static_cast<size_t>(kRows * n)) {
    PhiloxStream stream(3, static_cast<uint32_t>(n));
    fill(gate_up, stream, 20.0f);
    gate_mul_ref(params(want), {0, kRows});
  }
  GateMulParams params(ActBuffer& out) {
    return {.out = out.data(),
            .gate_up = gate_up.data(),
            .n_rows = kRows,
            .ffn_dim = width,
            .act = act,
            .gate = gate};
  }
  double tolerance(size_t i) {
    const auto n = static_cast<size_t>(width);
    return gate_mul_tolerance(act, want.get(i), gate, gate_up.get(i / n * 2 * n + i % n));
  }
  void require_close(ActBuffer& got) {
    REQUIRE_CLOSE(got, want, ([&](size_t i) { return tolerance(i); }));
  }
};

}  // namespace tandem::test
