#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kernels/differences.h"
#include "kernels/elementwise_case.h"
#include "kernels/embed/embed_backward.h"
#include "kernels/optim/adamw_element.h"
#include "kernels/rope_case.h"
#include "ops/backward.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kWidths[] = {1, 2, 7, 15, 16, 17, 31, 63, 64, 65, 127, 1009};
constexpr double kF32 = 0x1p-23;

Numbers numbers(ActBuffer& b) {
  Numbers all;
  for (size_t i = 0; i < b.size(); ++i) all.push_back(b.get(i));
  return all;
}

/// Three rows of dy and x, of which `listed` takes the last and the first.
struct NormCase {
  static constexpr int kRows = 3;
  DType act;
  int dim;
  ActBuffer dy, x;
  Buffer<float> weight, start;
  std::vector<int32_t> listed{2, 0};

  NormCase(DType t, int n, size_t offset)
      : act(t),
        dim(n),
        dy(t, size(), offset),
        x(t, size(), offset),
        weight(static_cast<size_t>(n), offset),
        start(size(), offset) {
    PhiloxStream stream(11, static_cast<uint32_t>(n));
    fill(dy, stream, 1.0f);
    fill(x, stream, 3.0f);
    fill(weight, stream, 2.0f);
    fill(start, stream, 1.0f);
  }
  size_t size() const { return static_cast<size_t>(kRows * dim); }
  RmsNormBackwardParams params(ActBuffer& dx) {
    return {.dx = static_cast<float*>(dx.data()),
            .dy = dy.data(),
            .x = x.data(),
            .weight = weight.data(),
            .n_rows = kRows,
            .dim = dim,
            .eps = 1e-2f,
            .dy_type = act,
            .x_type = act};
  }
  ActBuffer gradient(size_t offset = 0) {
    ActBuffer dx(DType::f32, size(), offset);
    for (size_t i = 0; i < size(); ++i) dx.set(i, start[i]);
    return dx;
  }
  /// Two sums in two chains a vector at least, with dim/4 half-spacings each, then ten operations;
  /// terms are at most 3 * 2 / inverse.
  double tolerance(double inverse) const { return (10 + dim / 8.0) * kF32 * (1 + 8 * inverse); }
};

}  // namespace

TEST_SUITE("kernels/rms_norm_backward") {
  TEST_CASE("the reference agrees with differences in double") {
    NormCase c(DType::f32, 7, 0);
    ActBuffer dx = c.gradient();
    rms_norm_backward_ref(c.params(dx), {0, c.kRows});
    for (size_t r = 0; r < 3; ++r) {
      const size_t first = r * 7;
      Numbers row = numbers(c.x);
      row = {row.begin() + static_cast<long>(first), row.begin() + static_cast<long>(first) + 7};
      const Numbers want = differences(
          [&](const Numbers& x) {
            double squares = 0, sum = 0;
            for (const double v : x) squares += v * v / 7;
            for (size_t i = 0; i < 7; ++i)
              sum += x[i] / std::sqrt(squares + 1e-2f) * double{c.weight[i]} *
                     double{c.dy.get(first + i)};
            return sum;
          },
          row);
      for (size_t i = 0; i < 7; ++i)
        CHECK(std::abs(double{dx.get(first + i)} - double{c.start[first + i]} - want[i]) <=
              kDifferenceTolerance);
    }
  }

  TEST_CASE("every variant agrees with the reference") {
    over_grid(kWidths, [](Isa isa, DType act, int dim, size_t offset) {
      NormCase c(act, dim, offset);
      ActBuffer want = c.gradient(), got = c.gradient(offset);
      ActBuffer inverse(DType::f32, c.kRows), inverse0(DType::f32, c.kRows);
      RmsNormBackwardParams p = c.params(want);
      p.inverse = static_cast<float*>(inverse0.data());
      rms_norm_backward_ref(p, {0, c.kRows});
      p = c.params(got);
      p.inverse = static_cast<float*>(inverse.data());
      cpu_table(isa).rms_norm_backward(p, {0, c.kRows});
      const auto width = static_cast<size_t>(dim);
      REQUIRE_CLOSE(got, want,
                    ([&](size_t i) { return c.tolerance(double{inverse0.get(i / width)}); }));
      REQUIRE_CLOSE(inverse, inverse0,
                    ([&](size_t i) { return (4 + dim / 8.0) * kF32 * double{inverse0.get(i)}; }));
    });
  }

  TEST_CASE("a scale multiplies the gradient; without a weight dy is added times the scale") {
    over_grid(kWidths, [](Isa isa, DType act, int dim, size_t offset) {
      NormCase c(act, dim, offset);
      for (const bool weighted : {true, false}) {
        ActBuffer want = c.gradient(), got = c.gradient(offset);
        ActBuffer inverse(DType::f32, c.kRows), inverse0(DType::f32, c.kRows);
        const auto params = [&](ActBuffer& dx, ActBuffer& scales) {
          RmsNormBackwardParams p = c.params(dx);
          p.scale = 0.6f;
          p.inverse = static_cast<float*>(scales.data());
          if (!weighted) p.weight = nullptr;
          return p;
        };
        rms_norm_backward_ref(params(want, inverse0), {0, c.kRows});
        cpu_table(isa).rms_norm_backward(params(got, inverse), {0, c.kRows});
        const auto width = static_cast<size_t>(dim);
        REQUIRE_CLOSE(got, want, ([&](size_t i) {
                        return c.tolerance(weighted ? double{inverse0.get(i / width)} / 0.6 : 0);
                      }));
        for (size_t i = 0; i < c.size(); ++i)
          if (!weighted)
            CHECK(std::abs(got.get(i) - (c.start[i] + 0.6f * c.dy.get(i))) <= 4 * kF32);
      }
    });
  }

  TEST_CASE("listed rows alone get a gradient, each the same as without a list") {
    for (const Isa isa : usable_isas()) {
      NormCase c(DType::f32, 33, 1);
      ActBuffer all = c.gradient(), some = c.gradient();
      cpu_table(isa).rms_norm_backward(c.params(all), {0, 3});
      ActBuffer dy(DType::f32, 66);
      for (size_t i = 0; i < 66; ++i) dy.set(i, c.dy.get(i < 33 ? 66 + i : i - 33));
      RmsNormBackwardParams p = c.params(some);
      p.dy = dy.data();
      p.rows = c.listed.data();
      p.n_rows = 2;
      cpu_table(isa).rms_norm_backward(p, {0, 2});
      for (size_t i = 0; i < c.size(); ++i)
        CHECK(some.get(i) == (i / 33 == 1 ? c.start[i] : all.get(i)));
    }
  }
}

TEST_SUITE("kernels/column_sums") {
  TEST_CASE("every variant agrees with the reference, in any division of the columns") {
    over_grid(kWidths, [](Isa isa, DType act, int dim, size_t offset) {
      for (const bool norm : {false, true}) {
        NormCase c(act, dim, offset);
        Buffer<float> scale(3);
        for (size_t r = 0; r < 3; ++r) scale[r] = 0.5f + static_cast<float>(r);
        const auto sums = [&](ColumnSumsFn* body, Range columns, ActBuffer& to) {
          ColumnSumsParams p{.sums = static_cast<float*>(to.data()),
                             .dy = c.dy.data(),
                             .n_rows = 2,
                             .dim = dim,
                             .dy_type = act};
          if (norm) {
            p.x = c.x.data();
            p.scale = scale.data();
            p.x_type = act;
            p.rows = c.listed.data();
          }
          body(p, columns);
        };
        const auto width = static_cast<size_t>(dim);
        ActBuffer want(DType::f32, width), got(DType::f32, width, offset);
        for (size_t i = 0; i < width; ++i) want.set(i, c.start[i]);
        got.f32.memory.assign(got.f32.memory.size(), 0);
        for (size_t i = 0; i < width; ++i) got.set(i, c.start[i]);
        ActBuffer halves = got;
        sums(column_sums_ref, {0, dim}, want);
        sums(cpu_table(isa).column_sums, {0, dim}, got);
        sums(cpu_table(isa).column_sums, {dim / 2, dim}, halves);
        sums(cpu_table(isa).column_sums, {0, dim / 2}, halves);
        // Two terms of at most 3 * 2.5 after a start of at most 1.
        REQUIRE_CLOSE(got, want, ([](size_t) { return 4 * kF32 * 16; }));
        REQUIRE_CLOSE(halves, got, ([](size_t) { return 0.0; }));
      }
    });
  }
}

TEST_SUITE("kernels/gate_mul_backward") {
  TEST_CASE("the reference agrees with differences in double") {
    constexpr int kWidth = 9;
    for (const Gate gate : kGates) {
      CAPTURE(static_cast<int>(gate));
      GateMulCase c(DType::f32, kWidth, 0);
      for (size_t i = 0; i < c.gate_up.size(); ++i) c.gate_up.set(i, c.gate_up.get(i) * 0.2f);
      ActBuffer da(DType::f32, 2 * kWidth), got = c.gate_up;
      PhiloxStream stream(12);
      fill(da, stream, 1.0f);
      const Numbers want = differences(
          [&](const Numbers& x) {
            double sum = 0;
            for (size_t i = 0; i < 2 * kWidth; ++i) {
              const size_t at = i / kWidth * 2 * kWidth + i % kWidth;
              sum += double{da.get(i)} * plain_gate(gate, x[at]) * x[at + kWidth];
            }
            return sum;
          },
          numbers(c.gate_up));
      gate_mul_backward_ref({.gate_up = got.data(),
                             .da = da.data(),
                             .a_columns = nullptr,
                             .columns = nullptr,
                             .n_rows = 2,
                             .ffn_dim = kWidth,
                             .n_columns = 0,
                             .act = DType::f32,
                             .gate = gate},
                            {0, 2});
      for (size_t i = 0; i < got.size(); ++i)
        CHECK(std::abs(double{got.get(i)} - want[i]) <= kDifferenceTolerance);
    }
  }

  TEST_CASE("every variant agrees with the reference; columns of a have the bits of gate_mul") {
    over_grid(kWidths, [](Isa isa, DType act, int width, size_t offset) {
      for (const Gate gate : kGates)
        for (const bool whole : {false, true}) {
          CAPTURE(static_cast<int>(gate));
          GateMulCase c(act, width, offset, gate);
          const auto n = static_cast<size_t>(width);
          ActBuffer da(act, 2 * n, offset), a(act, 2 * n);
          PhiloxStream stream(13);
          fill(da, stream, 1.0f);
          cpu_table(isa).gate_mul(c.params(a), {0, 2});
          std::vector<int32_t> columns;
          for (int i = width % 2; i < width; i += 2) columns.push_back(i);
          const size_t n_columns = whole ? n : columns.size();
          if (n_columns == 0) continue;
          ActBuffer got = c.gate_up, want = c.gate_up, gathered(act, 2 * n_columns, offset);
          GateMulBackwardParams p{.gate_up = got.data(),
                                  .da = da.data(),
                                  .a_columns = gathered.data(),
                                  .columns = whole ? nullptr : columns.data(),
                                  .n_rows = 2,
                                  .ffn_dim = width,
                                  .n_columns = static_cast<int>(n_columns),
                                  .act = act,
                                  .gate = gate};
          cpu_table(isa).gate_mul_backward(p, {0, 2});
          p.gate_up = want.data();
          p.a_columns = nullptr;
          gate_mul_backward_ref(p, {0, 2});
          // Slopes reach 1.1 |up|, ups are at most 20; 12 operations.
          REQUIRE_CLOSE(got, want, ([&](size_t i) {
                          return spacing(act) * std::abs(double{want.get(i)}) + 12 * kF32 * 22 +
                                 kTiny;
                        }));
          for (size_t i = 0; i < gathered.size(); ++i) {
            const size_t r = i / n_columns, at = i % n_columns;
            const size_t column = whole ? at : static_cast<size_t>(columns[at]);
            REQUIRE(gathered.get(i) == a.get(r * n + column));
          }
        }
    });
  }

  TEST_CASE("without da columns are gathered and nothing else changes; gates may saturate") {
    for (const Isa isa : usable_isas())
      for (const Gate gate : kGates) {
        CAPTURE(isa_name(isa));
        CAPTURE(static_cast<int>(gate));
        Buffer<float> gate_up(6), a(2);
        const float in[6] = {-200.0f, 0.0f, 200.0f, 2.0f, 2.0f, 2.0f};
        std::copy(in, in + 6, gate_up.data());
        const int32_t columns[] = {0, 2};
        GateMulBackwardParams p{.gate_up = gate_up.data(),
                                .da = nullptr,
                                .a_columns = a.data(),
                                .columns = columns,
                                .n_rows = 1,
                                .ffn_dim = 3,
                                .n_columns = 2,
                                .act = DType::f32,
                                .gate = gate};
        cpu_table(isa).gate_mul_backward(p, {0, 1});
        CHECK(a[0] == 0.0f);
        CHECK(a[1] == 400.0f);
        CHECK(std::equal(in, in + 6, gate_up.data()));
        const float da[] = {1.0f, 1.0f, 1.0f};
        p.da = da;
        p.a_columns = nullptr;
        cpu_table(isa).gate_mul_backward(p, {0, 1});
        const float want[6] = {0.0f, gate == Gate::relu ? 0.0f : 1.0f, 2.0f, 0.0f, 0.0f, 200.0f};
        for (size_t i = 0; i < 6; ++i) CHECK(gate_up[i] == want[i]);
      }
  }
}

namespace {

/// The gradient of a projection through rope_kv, as parameters over a RopeCase.
RopeBackwardParams backward_params(RopeCase& c, ActBuffer& dqkv, float* dnorms = nullptr) {
  return {.dqkv = dqkv.data(),
          .cos_table = c.cosine.data(),
          .sin_table = c.sine.data(),
          .pos = c.pos.data(),
          .n_rows = c.n_rows,
          .n_heads = c.hq,
          .n_kv_heads = c.hkv,
          .head_dim = c.d,
          .act = c.act,
          .qkv = c.normed ? c.qkv.data() : nullptr,
          .q_norm = c.normed ? c.q_norm.data() : nullptr,
          .k_norm = c.normed ? c.k_norm.data() : nullptr,
          .norm_eps = c.normed ? RopeCase::kNormEps : 0.0f,
          .dnorms = dnorms,
          .rotated = c.rotated};
}

/// <dy, rope_kv(x)> for a row of two q heads, one k head and one v head, in double.
double turned_dot(RopeCase& c, const Numbers& x, const Numbers& norms, const Numbers& dy) {
  const auto d = static_cast<size_t>(c.d),
             half = static_cast<size_t>(c.rotated < 0 ? c.d : c.rotated) / 2;
  double sum = 0;
  for (size_t h = 0; h < 4; ++h) {
    double squares = RopeCase::kNormEps;
    for (size_t i = 0; i < d; ++i) squares += x[h * d + i] * x[h * d + i] / static_cast<double>(d);
    const auto at = [&](size_t i) {
      if (!c.normed || h == 3) return x[h * d + i];
      return x[h * d + i] / std::sqrt(squares) * norms[(h == 2 ? d : 0) + i];
    };
    for (size_t i = 0; i < half; ++i) {
      const size_t angle = static_cast<size_t>(c.pos[0]) * half + i;
      const double co = h == 3 ? 1.0 : double{c.cosine[angle]};
      const double si = h == 3 ? 0.0 : double{c.sine[angle]};
      sum += dy[h * d + i] * (at(i) * co - at(i + half) * si) +
             dy[h * d + i + half] * (at(i + half) * co + at(i) * si);
    }
    for (size_t i = 2 * half; i < d; ++i) sum += dy[h * d + i] * at(i);
  }
  return sum;
}

}  // namespace

TEST_SUITE("kernels/rope_backward") {
  TEST_CASE("the reference agrees with differences in double, with norms of heads and without") {
    for (const int which : {0, 1, 2, 3, 4, 5}) {
      const bool normed = which > 2;
      RopeCase c(DType::f32, 1, 2, 1, 6, 0, turned(6, which % 3));
      c.normed = normed;
      ActBuffer dqkv(DType::f32, c.qkv.size());
      PhiloxStream stream(14);
      fill(dqkv, stream, 1.0f);
      const Numbers dy = numbers(dqkv), x = numbers(c.qkv);
      Numbers norms;
      for (size_t i = 0; i < 12; ++i)
        norms.push_back(double{i < 6 ? c.q_norm[i] : c.k_norm[i - 6]});
      const Numbers want =
          differences([&](const Numbers& at) { return turned_dot(c, at, norms, dy); }, x);
      const Numbers want_norms =
          differences([&](const Numbers& at) { return turned_dot(c, x, at, dy); }, norms);
      float dnorms[12];
      rope_backward_ref(backward_params(c, dqkv, normed ? dnorms : nullptr), {0, 1});
      for (size_t i = 0; i < want.size(); ++i)
        CHECK(std::abs(double{dqkv.get(i)} - want[i]) <= kDifferenceTolerance);
      for (size_t i = 0; normed && i < 12; ++i)
        CHECK(std::abs(double{dnorms[i]} - want_norms[i]) <= kDifferenceTolerance);
    }
  }

  TEST_CASE("every variant agrees with the reference, row by row too") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int d : {2, 6, 16, 34, 48, 64, 80, 128, 256})
          for (const int which : {0, 1, 2, 3, 4, 5}) {
            const bool normed = which > 2;
            CAPTURE(isa_name(isa));
            CAPTURE(dtype_name(act));
            CAPTURE(d);
            CAPTURE(which);
            RopeCase c(act, 4, 6, 2, d, 1, turned(d, which % 3));
            c.normed = normed;
            ActBuffer got(act, c.qkv.size(), 1);
            PhiloxStream stream(15);
            fill(got, stream, 1.0f);
            ActBuffer want = got, alone = got;
            std::vector<float> dnorms(static_cast<size_t>(8 * d)), dnorms0(dnorms);
            cpu_table(isa).rope_backward(backward_params(c, got, dnorms.data()), {0, 4});
            rope_backward_ref(backward_params(c, want, dnorms0.data()), {0, 4});
            for (int r = 3; r >= 0; --r)
              cpu_table(isa).rope_backward(backward_params(c, alone, nullptr), {r, r + 1});
            REQUIRE_CLOSE(alone, got, ([](size_t) { return 0.0; }));
            // Turned gradients are at most sqrt 2; norms at most 2 divide them by a root mean
            // square of at least .1 (of kNormEps). With norms act rounds them once before.
            const double before = normed ? 20 * (spacing(act) + (10 + d / 8.0) * kF32) : 0;
            REQUIRE_CLOSE(got, want, ([&](size_t i) {
                            return rope_tolerance(act, want.get(i)) + 2 * before;
                          }));
            if (!normed) continue;
            for (size_t i = 0; i < dnorms.size(); ++i)
              REQUIRE(std::abs(dnorms[i] - dnorms0[i]) <= 6 * 2 * 1.5 * (spacing(act) + 8 * kF32));
          }
  }
}

TEST_SUITE("kernels/cross_entropy") {
  TEST_CASE("the reference agrees with differences in double") {
    constexpr size_t kVocab = 11;
    ActBuffer z(DType::f32, 2 * kVocab), dz(DType::f32, 2 * kVocab);
    PhiloxStream stream(16);
    fill(z, stream, 4.0f);
    const int32_t targets[] = {7, -1};
    float loss[2];
    cross_entropy_ref({.logits = static_cast<float*>(z.data()),
                       .dlogits = dz.data(),
                       .loss = loss,
                       .targets = targets,
                       .scale = 0.5f,
                       .n_rows = 2,
                       .vocab = kVocab,
                       .act = DType::f32},
                      {0, 2});
    const auto loss_of = [&](const Numbers& x) {
      double sum = 0;
      for (size_t i = 0; i < kVocab; ++i) sum += std::exp(x[i]);
      return std::log(sum) - x[7];
    };
    const Numbers x = numbers(z);
    const Numbers want = differences([&](const Numbers& at) { return loss_of(at) / 2; }, x);
    for (size_t i = 0; i < x.size(); ++i)
      CHECK(std::abs(double{dz.get(i)} - want[i]) <= kDifferenceTolerance);
    CHECK(std::abs(double{loss[0]} - loss_of(x)) <= 1e-6);
    CHECK(loss[1] == 0.0f);
  }

  TEST_CASE("every variant agrees with the reference, in place too, and rows may be ignored") {
    over_grid(kWidths, [](Isa isa, DType act, int vocab, size_t offset) {
      const auto n = static_cast<size_t>(vocab);
      ActBuffer z(DType::f32, 3 * n, offset), got(act, 3 * n, offset), want(act, 3 * n);
      PhiloxStream stream(17);
      fill(z, stream, 30.0f);
      const int32_t targets[] = {vocab / 2, -1, vocab - 1};
      float loss[3], loss0[3];
      CrossEntropyParams p{.logits = static_cast<float*>(z.data()),
                           .dlogits = want.data(),
                           .loss = loss0,
                           .targets = targets,
                           .scale = 0.25f,
                           .n_rows = 3,
                           .vocab = vocab,
                           .act = act};
      cross_entropy_ref(p, {0, 3});
      p.dlogits = got.data();
      p.loss = loss;
      cpu_table(isa).cross_entropy(p, {0, 3});
      const double relative = spacing(act) + (8 + vocab / 16.0) * kF32;
      // The share at the target is near 1 before it is taken from 1. An exponent of up to 60 has
      // its own rounding error, 60 half-spacings.
      REQUIRE_CLOSE(
          got, want, ([&](size_t i) {
            return (relative + 60 * kF32) * (std::abs(double{want.get(i)}) + 0.25 * kF32) +
                   (static_cast<int>(i % n) == targets[i / n] ? 0.25 * relative : 0.0) + kTiny;
          }));
      for (size_t r = 0; r < 3; ++r)
        REQUIRE(std::abs(loss[r] - loss0[r]) <= (4 + vocab / 16.0) * kF32 + 60 * kF32);
      if (act != DType::f32) return;
      ActBuffer same = z;
      p.logits = static_cast<float*>(same.data());
      p.dlogits = same.data();
      cpu_table(isa).cross_entropy(p, {0, 3});
      REQUIRE_CLOSE(same, got, ([](size_t) { return 0.0; }));
    });
  }
}

TEST_SUITE("kernels/optim") {
  TEST_CASE("sums of squares agree with the reference and do not depend on who sums a block") {
    for (const Isa isa : usable_isas())
      for (const int64_t n :
           {int64_t{1}, int64_t{1023}, int64_t{kOptimBlock}, int64_t{3 * kOptimBlock + 77}}) {
        CAPTURE(isa_name(isa));
        CAPTURE(n);
        const auto blocks = static_cast<size_t>((n + kOptimBlock - 1) / kOptimBlock);
        Buffer<float> x(static_cast<size_t>(n), 1);
        PhiloxStream stream(18);
        fill(x, stream, 2.0f);
        std::vector<double> got(blocks), want(blocks), alone(blocks);
        square_sum_ref({want.data(), x.data(), n}, {0, static_cast<int>(blocks)});
        cpu_table(isa).square_sum({got.data(), x.data(), n}, {0, static_cast<int>(blocks)});
        for (int b = static_cast<int>(blocks) - 1; b >= 0; --b)
          cpu_table(isa).square_sum({alone.data(), x.data(), n}, {b, b + 1});
        CHECK(alone == got);
        // Chains of at most 1024 terms.
        for (size_t b = 0; b < blocks; ++b)
          CHECK(std::abs(got[b] - want[b]) <= 64 * kF32 * want[b]);
      }
  }

  TEST_CASE("AdamW with moments in bf16 is AdamW, each number rounded once") {
    constexpr int64_t kN = 1003;
    PhiloxStream stream(20);
    for (const DType type : kActs) {
      CAPTURE(dtype_name(type));
      ActBuffer w(type, kN), m(DType::bf16, kN), v(DType::bf16, kN), gradient(DType::f32, kN);
      for (ActBuffer* b : {&w, &m, &v, &gradient}) fill(*b, stream, 1.0f);
      for (size_t i = 0; i < kN; ++i) v.set(i, v.get(i) * v.get(i));
      ActBuffer w0 = w, m0 = m, v0 = v;
      adamw_narrow_cpu({.weights = w.data(),
                        .first = static_cast<bf16*>(m.data()),
                        .second = static_cast<bf16*>(v.data()),
                        .gradient = static_cast<float*>(gradient.data()),
                        .n = kN,
                        .by = {.gradient_scale = 0.5f,
                               .learning_rate = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .epsilon = 1e-4f,
                               .weight_decay = 0.1f,
                               .unbias1 = 1 / 0.19f,
                               .unbias2 = 1 / 0.0975f},
                        .weight_type = type,
                        .stochastic = false,
                        .seed = 0,
                        .step = 2},
                       {0, 1});
      for (size_t i = 0; i < kN; ++i) {
        const double g = double{gradient.get(i)} * 0.5, was = w0.get(i);
        const double first = 0.9 * m0.get(i) + 0.1 * g, second = 0.95 * v0.get(i) + 0.05 * g * g;
        const double update = first / 0.19 / (std::sqrt(second / 0.0975) + 1e-4);
        const double want = was - 1e-2 * (update + 0.1 * was);
        REQUIRE(std::abs(m.get(i) - first) <= spacing(DType::bf16) * std::abs(first) + 1e-6);
        REQUIRE(std::abs(v.get(i) - second) <= spacing(DType::bf16) * second + 1e-6);
        REQUIRE(std::abs(w.get(i) - want) <=
                spacing(type) * std::abs(want) + 1e-5 * (1 + std::abs(update)));
      }
    }
  }

  TEST_CASE("stochastic rounding goes to either neighbour, on average to the number itself") {
    constexpr int64_t kN = 20000;
    const auto run = [&](float start, float rate, uint64_t seed, bool stochastic, int64_t first) {
      ActBuffer w(DType::bf16, kN), m(DType::bf16, kN), v(DType::bf16, kN), g(DType::f32, kN);
      for (size_t i = 0; i < kN; ++i) {
        w.set(i, start);
        g.set(i, -1.0f);
      }
      adamw_narrow_cpu({.weights = w.data(),
                        .first = static_cast<bf16*>(m.data()),
                        .second = static_cast<bf16*>(v.data()),
                        .gradient = static_cast<float*>(g.data()),
                        .n = kN,
                        .by = {.gradient_scale = 1,
                               .learning_rate = rate,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .epsilon = 0,
                               .weight_decay = 0,
                               .unbias1 = 1 / 0.1f,
                               .unbias2 = 1 / 0.05f},
                        .weight_type = DType::bf16,
                        .stochastic = stochastic,
                        .seed = seed,
                        .step = 1,
                        .first_element = first},
                       {0, 2});
      return w;
    };
    // A step of a fifth of the spacing above 1, 2^-7.
    const float rate = 0x1p-7f / 5;
    ActBuffer nearest = run(1, rate, 1, false, 0), drawn = run(1, rate, 1, true, 0);
    size_t up = 0;
    for (size_t i = 0; i < kN; ++i) {
      REQUIRE(nearest.get(i) == 1.0f);  // lost
      REQUIRE((drawn.get(i) == 1.0f || drawn.get(i) == 1.0f + 0x1p-7f));
      up += drawn.get(i) > 1.0f;
    }
    CHECK(double(up) / kN == doctest::Approx(0.2).epsilon(0.07));  // five deviations
    ActBuffer again = run(1, rate, 1, true, 0), other = run(1, rate, 2, true, 0),
              later = run(1, rate, 1, true, 5);
    size_t differ = 0;
    for (size_t i = 0; i < kN; ++i) {
      REQUIRE(again.get(i) == drawn.get(i));
      if (i + 5 < kN) REQUIRE(later.get(i) == drawn.get(i + 5));  // by element, not by call
      differ += other.get(i) != drawn.get(i);
    }
    CHECK(differ > kN / 5);
  }

  TEST_CASE("an element is rounded by its place among all trained values, wherever a call begins") {
    constexpr int64_t kN = 37;
    constexpr uint64_t kSeed = 0x0123456789ABCDEF;
    constexpr uint32_t kStep = 9;
    // The last begins before, and ends behind, a draw whose number needs a second word.
    for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{8}, (int64_t{1} << 35) - 3}) {
      CAPTURE(first);
      ActBuffer w(DType::bf16, kN), m(DType::bf16, kN), v(DType::bf16, kN), g(DType::f32, kN);
      PhiloxStream stream(21);
      fill(w, stream, 1.0f);
      fill(g, stream, 1.0f);
      std::vector<uint16_t> want;
      for (size_t i = 0; i < kN; ++i) {
        const uint64_t element = static_cast<uint64_t>(first) + i, draw = element / 8;
        const auto words =
            philox4x32({static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), kStep,
                        static_cast<uint32_t>(DrawPurpose::rounding)},
                       {0x89ABCDEFu, 0x01234567u});
        const uint32_t random = words[element % 8 / 2] >> 16 * (element % 2) & 0xFFFF;
        const float next = std::fmaf(-1e-3f, g.get(i), w.get(i));
        want.push_back(static_cast<uint16_t>((std::bit_cast<uint32_t>(next) + random) >> 16));
      }
      // With beta1 = 0, and beta2 = 1 of v = 1, a step is the rate times the gradient.
      for (size_t i = 0; i < kN; ++i) v.set(i, 1.0f);
      adamw_narrow_cpu({.weights = w.data(),
                        .first = static_cast<bf16*>(m.data()),
                        .second = static_cast<bf16*>(v.data()),
                        .gradient = static_cast<float*>(g.data()),
                        .n = kN,
                        .by = {.gradient_scale = 1,
                               .learning_rate = 1e-3f,
                               .beta1 = 0,
                               .beta2 = 1,
                               .epsilon = 0,
                               .weight_decay = 0,
                               .unbias1 = 1,
                               .unbias2 = 1},
                        .weight_type = DType::bf16,
                        .stochastic = true,
                        .seed = kSeed,
                        .step = kStep,
                        .first_element = first},
                       {0, 1});
      for (size_t i = 0; i < kN; ++i)
        REQUIRE(std::bit_cast<uint16_t>(static_cast<bf16*>(w.data())[i]) == want[i]);
    }
  }

  TEST_CASE("groups that a GPU's threads take hold every element of a call once, in its place") {
    for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{8}, (int64_t{1} << 35) - 3})
      for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{9}, int64_t{37}}) {
        CAPTURE(first);
        CAPTURE(n);
        int64_t next = 0;
        for (int64_t index = 0; index < n_groups(first, n); ++index)
          for (int e = 0; e < kGroup; ++e) {
            const int64_t i = group_begin(first, index) + e;
            if (i < 0 || i >= n) continue;
            REQUIRE(i == next++);
            const RoundingPlace at = rounding_place(first + i);
            REQUIRE(at.place == e);
            REQUIRE(at.group == rounding_place(first).group + index);
          }
        CHECK(next == n);
      }
  }

  TEST_CASE("AdamW agrees with the reference over many steps, and decays to 0 or to a base") {
    for (const Isa isa : usable_isas())
      for (const bool to_base : {false, true}) {
        CAPTURE(isa_name(isa));
        CAPTURE(to_base);
        constexpr int64_t kN = kOptimBlock + 13;
        constexpr auto kSize = static_cast<size_t>(kN);
        ActBuffer w(DType::f32, kSize, 1), m(DType::f32, kSize, 1), v(DType::f32, kSize, 1);
        ActBuffer gradient(DType::f32, kSize);
        PhiloxStream stream(19);
        fill(w, stream, 1.0f);
        ActBuffer w0 = w, m0 = m, v0 = v, base = w;
        double power1 = 1, power2 = 1;
        for (int t = 1; t <= 5; ++t) {
          fill(gradient, stream, 1.0f);
          power1 *= 0.9;
          power2 *= 0.95;
          AdamWParams p{.weights = static_cast<float*>(w.data()),
                        .first = static_cast<float*>(m.data()),
                        .second = static_cast<float*>(v.data()),
                        .gradient = static_cast<float*>(gradient.data()),
                        .n = kN,
                        .by = {.gradient_scale = 0.5f,
                               .learning_rate = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .epsilon = 1e-8f,
                               .weight_decay = 0.1f,
                               .unbias1 = 1 / static_cast<float>(1 - power1),
                               .unbias2 = 1 / static_cast<float>(1 - power2)},
                        .base = to_base ? static_cast<float*>(base.data()) : nullptr};
          cpu_table(isa).adamw(p, {0, 1});
          cpu_table(isa).adamw(p, {1, 2});
          p.weights = static_cast<float*>(w0.data());
          p.first = static_cast<float*>(m0.data());
          p.second = static_cast<float*>(v0.data());
          adamw_ref(p, {0, 2});
        }
        // Moments are sums of at most five terms within .5. An update is at most about 2, and m may
        // cancel to nothing: its error stays that of its terms, over a root of v that is
        // small where all five gradients were.
        REQUIRE_CLOSE(m, m0, ([](size_t) { return 5 * 4 * kF32; }));
        REQUIRE_CLOSE(v, v0, ([](size_t) { return 5 * 4 * kF32; }));
        REQUIRE_CLOSE(w, w0, ([&](size_t i) {
                        const double root = std::sqrt(double{v0.get(i)}) + 1e-8;
                        return 5 * (kF32 * 2 + 1e-2 * 40 * kF32 * (1 + 1 / root));
                      }));
      }
  }

  TEST_CASE("the first step moves every weight by the rate against its gradient's sign") {
    for (const Isa isa : usable_isas()) {
      Buffer<float> w(3), m(3), v(3), gradient(3);
      gradient[0] = 1e-3f;
      gradient[1] = -40.0f;
      cpu_table(isa).adamw({.weights = w.data(),
                            .first = m.data(),
                            .second = v.data(),
                            .gradient = gradient.data(),
                            .n = 3,
                            .by = {.gradient_scale = 1.0f,
                                   .learning_rate = 0.25f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .epsilon = 1e-8f,
                                   .weight_decay = 0,
                                   .unbias1 = 1 / (1.0f - 0.9f),
                                   .unbias2 = 1 / (1.0f - 0.95f)}},
                           {0, 1});
      CHECK(double{w[0]} == doctest::Approx(-0.25).epsilon(1e-4));
      CHECK(double{w[1]} == doctest::Approx(0.25).epsilon(1e-4));
      CHECK(w[2] == 0.0f);
    }
  }
}

TEST_SUITE("kernels/embed_backward") {
  TEST_CASE("rows of one token are summed in their order, on any number of threads") {
    constexpr int kVocab = 50, kRows = 200, kDim = 7;
    PhiloxStream stream(23);
    Buffer<float> dx(kRows * kDim), table(kVocab * kDim);
    fill(dx, stream, 1.0f);
    fill(table, stream, 1.0f);
    Buffer<float> want = table;
    std::vector<int32_t> tokens;
    for (int r = 0; r < kRows; ++r) tokens.push_back(static_cast<int32_t>(stream.below(kVocab)));
    for (size_t r = 0; r < kRows; ++r)
      for (size_t c = 0; c < kDim; ++c)
        want[static_cast<size_t>(tokens[r]) * kDim + c] += dx[r * kDim + c];
    const ops::TokenRows by_token(tokens);
    const int n = by_token.n_tokens;
    CHECK(by_token.lists.size() <= ops::TokenRows::most_numbers(kRows));
    const int32_t* lists = by_token.lists.data();
    const EmbedBackwardParams p{.dtable = table.data(),
                                .dx = dx.data(),
                                .ids = lists,
                                .begin = lists + n,
                                .rows = lists + 2 * n + 1,
                                .n_ids = n,
                                .dim = kDim};
    for (int begin = 0; begin < n; begin += 3)
      embed_backward_cpu(p, {begin, std::min(n, begin + 3)});
    for (size_t i = 0; i < kVocab * kDim; ++i) REQUIRE(table[i] == want[i]);
    CHECK(ops::TokenRows({}).n_tokens == 0);
    CHECK(ops::TokenRows({}).lists == std::vector<int32_t>{0});
  }
}

TEST_SUITE("kernels/gather_columns") {
  TEST_CASE("columns are copied as listed") {
    for (const DType act : kActs) {
      ActBuffer in(act, 12), out(act, 6);
      for (size_t i = 0; i < 12; ++i) in.set(i, static_cast<float>(i));
      const int32_t columns[] = {3, 1};
      cpu_table().gather_columns({.out = out.data(),
                                  .in = in.data(),
                                  .columns = columns,
                                  .n_rows = 3,
                                  .width = 4,
                                  .n_columns = 2,
                                  .act = act},
                                 {0, 3});
      const float want[] = {3, 1, 7, 5, 11, 9};
      for (size_t i = 0; i < 6; ++i) CHECK(out.get(i) == want[i]);
    }
  }
}
