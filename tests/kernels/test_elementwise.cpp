#include <algorithm>
#include <limits>

#include "kernels/elementwise_case.h"
#include "kernels/ffn/gate_ref.h"
#include "kernels/rope_case.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kWidths[] = {1, 2, 7, 15, 16, 17, 31, 63, 64, 65, 127, 1009, 4096};

}  // namespace

TEST_SUITE("kernels/rms_norm") {
  TEST_CASE("every variant agrees with the reference") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const NormForm& form : kNormForms)
          for (const int dim : kWidths)
            for (const size_t offset : {0u, 1u, 3u}) {
              if (form.adds && act == DType::bf16) continue;
              CAPTURE(isa_name(isa));
              CAPTURE(dtype_name(act));
              CAPTURE(form.scale);
              CAPTURE(dim);
              CAPTURE(offset);
              RmsNormCase c(act, dim, offset, form);
              ActBuffer got = c.output(offset);
              cpu_table(isa).rms_norm(c.params(got), {0, c.kRows});
              c.require_close(got);
            }
  }

  TEST_CASE("a row does not depend on the rows computed with it, and out may be x") {
    constexpr int kRows = 5, kDim = 1009;
    PhiloxStream stream(2);
    Buffer<float> x(kRows * kDim), weight(kDim), all(kRows * kDim), one(kRows * kDim);
    fill(x, stream, 1.0f);
    fill(weight, stream, 1.0f);
    RmsNormParams p{.out = all.data(),
                    .x = x.data(),
                    .weight = weight.data(),
                    .n_rows = kRows,
                    .dim = kDim,
                    .eps = 1e-6f,
                    .act = DType::f32};
    cpu_table().rms_norm(p, {0, kRows});
    p.out = one.data();
    for (int r = kRows - 1; r >= 0; --r) cpu_table().rms_norm(p, {r, r + 1});
    CHECK(all.memory == one.memory);
    p.out = x.data();
    cpu_table().rms_norm(p, {0, kRows});
    CHECK(x.memory == all.memory);
  }
}

TEST_SUITE("kernels/gate_mul") {
  TEST_CASE("every variant agrees with the reference") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int width : kWidths)
          for (const size_t offset : {0u, 1u, 3u})
            for (const Gate gate : kGates) {
              CAPTURE(isa_name(isa));
              CAPTURE(dtype_name(act));
              CAPTURE(width);
              CAPTURE(offset);
              CAPTURE(static_cast<int>(gate));
              GateMulCase c(act, width, offset, gate);
              ActBuffer got(act, c.want.size(), offset);
              cpu_table(isa).gate_mul(c.params(got), {0, c.kRows});
              c.require_close(got);
            }
  }

  TEST_CASE("the reference agrees with transformers' formula, in figures and in double") {
    const std::pair<float, double> known[] = {
        {-3.0f, -0.0036373920817729943}, {-1.0f, -0.15880800939172324}, {0.0f, 0.0},
        {0.5f, 0.34571400982514394},     {1.0f, 0.8411919906082768},    {4.0f, 3.9999297540518075}};
    for (const auto& [g, want] : known)
      CHECK(std::abs(gate_value(Gate::gelu_tanh, double{g}) - want) <= 1e-15);
    for (const Gate gate : kGates)
      for (int i = -2000; i <= 2000; ++i) {
        const double g = i * 0.01;
        REQUIRE(std::abs(gate_value(gate, g) - plain_gate(gate, g)) <= 1e-14);
      }
  }

  TEST_CASE("saturated gates") {
    for (const Isa isa : usable_isas())
      for (const Gate gate : kGates) {
        CAPTURE(isa_name(isa));
        CAPTURE(static_cast<int>(gate));
        Buffer<float> gate_up(6), out(3);
        const float in[6] = {-200.0f, 0.0f, 200.0f, 2.0f, 2.0f, 2.0f};
        std::copy(in, in + 6, gate_up.data());
        cpu_table(isa).gate_mul({.out = out.data(),
                                 .gate_up = gate_up.data(),
                                 .n_rows = 1,
                                 .ffn_dim = 3,
                                 .act = DType::f32,
                                 .gate = gate},
                                {0, 1});
        CHECK(out[0] == 0.0f);
        CHECK(out[1] == 0.0f);
        CHECK(out[2] == 400.0f);
      }
  }
}

TEST_SUITE("kernels/rope") {
  TEST_CASE("every variant of rope_kv agrees with the reference") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int d : {2, 6, 16, 34, 48, 64, 80, 128, 256})
          for (const size_t offset : {0u, 1u, 3u}) {
            CAPTURE(isa_name(isa));
            CAPTURE(dtype_name(act));
            CAPTURE(d);
            CAPTURE(offset);
            RopeCase c(act, 4, 6, 2, d, offset, turned(d, static_cast<int>(offset)));
            const auto n_q = static_cast<size_t>(c.n_rows * c.hq * d);
            ActBuffer q(act, n_q, offset), k(act, c.pool_size(), offset),
                v(act, c.pool_size(), offset);
            ActBuffer q0(act, n_q), k0(act, c.pool_size()), v0(act, c.pool_size());
            cpu_table(isa).rope_kv(c.params(q, k, v), {0, c.n_rows});
            rope_kv_ref(c.params(q0, k0, v0), {0, c.n_rows});
            REQUIRE_CLOSE(q, q0, ([&](size_t i) { return rope_tolerance(act, q0.get(i)); }));
            REQUIRE_CLOSE(k, k0, ([&](size_t i) { return rope_tolerance(act, k0.get(i)); }));
            REQUIRE_CLOSE(v, v0, ([](size_t) { return 0.0; }));
          }
  }

  TEST_CASE("with norms of heads every variant of rope_kv agrees with the reference") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int d : {2, 6, 16, 34, 48, 64, 80, 128, 256})
          for (const size_t offset : {0u, 1u, 3u}) {
            CAPTURE(isa_name(isa));
            CAPTURE(dtype_name(act));
            CAPTURE(d);
            CAPTURE(offset);
            RopeCase c(act, 4, 6, 2, d, offset, turned(d, static_cast<int>(offset)));
            c.normed = true;
            const auto n_q = static_cast<size_t>(c.n_rows * c.hq * d);
            ActBuffer q(act, n_q, offset), k(act, c.pool_size(), offset),
                v(act, c.pool_size(), offset);
            ActBuffer q0(act, n_q), k0(act, c.pool_size()), v0(act, c.pool_size());
            cpu_table(isa).rope_kv(c.params(q, k, v), {0, c.n_rows});
            rope_kv_ref(c.params(q0, k0, v0), {0, c.n_rows});
            REQUIRE_CLOSE(q, q0, ([&](size_t i) { return normed_rope_tolerance(act, q0, i, c); }));
            REQUIRE_CLOSE(k, k0, ([&](size_t i) { return normed_rope_tolerance(act, k0, i, c); }));
            REQUIRE_CLOSE(v, v0, ([](size_t) { return 0.0; }));
          }
  }

  TEST_CASE("a head is divided by its root mean square, weighed and then turned; zeros stay") {
    for (const Isa isa : usable_isas()) {
      CAPTURE(isa_name(isa));
      RopeCase c(DType::f32, 1, 2, 1, 8, 0);
      c.normed = true;
      for (size_t i = 0; i < c.qkv.size(); ++i) c.qkv.set(i, i < 8 ? 0.0f : i < 16 ? 3.0f : -5.0f);
      for (int i = 0; i < 4; ++i) {  // turns by 90 degrees: the halves change places, one its sign
        c.cosine[static_cast<size_t>(c.pos[0] * 4 + i)] = 0.0f;
        c.sine[static_cast<size_t>(c.pos[0] * 4 + i)] = 1.0f;
      }
      ActBuffer q(DType::f32, 16), k(DType::f32, c.pool_size()), v(DType::f32, c.pool_size());
      cpu_table(isa).rope_kv(c.params(q, k, v), {0, 1});
      const size_t slot = static_cast<size_t>((c.page[0] * kPageTokens + c.in_page[0]) * 8);
      for (size_t i = 0; i < 8; ++i) {
        const size_t partner = (i + 4) % 8;
        const double sign = i < 4 ? -1 : 1;
        CHECK(q.get(i) == 0.0f);
        CHECK(
            double{q.get(8 + i)} ==
            doctest::Approx(sign * 3 / std::sqrt(9.01) * double{c.q_norm[partner]}).epsilon(1e-6));
        CHECK(double{k.get(slot + i)} ==
              doctest::Approx(-sign * 5 / std::sqrt(25.01) * double{c.k_norm[partner]})
                  .epsilon(1e-6));
        CHECK(v.get(slot + i) == -5.0f);
      }
    }
  }

  TEST_CASE("a row with norms of heads has the same bits alone and among others") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int d : {34, 64, 80, 128}) {
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(act));
          CAPTURE(d);
          RopeCase c(act, 7, 5, 2, d, 0);
          c.normed = true;
          const auto n_q = static_cast<size_t>(c.n_rows * c.hq * d);
          ActBuffer q(act, n_q), k(act, c.pool_size()), v(act, c.pool_size());
          ActBuffer q1(act, n_q), k1(act, c.pool_size()), v1(act, c.pool_size());
          cpu_table(isa).rope_kv(c.params(q, k, v), {0, 7});
          for (int r = 6; r >= 0; --r) cpu_table(isa).rope_kv(c.params(q1, k1, v1), {r, r + 1});
          REQUIRE_CLOSE(q, q1, ([](size_t) { return 0.0; }));
          REQUIRE_CLOSE(k, k1, ([](size_t) { return 0.0; }));
        }
  }

  TEST_CASE("the pages hold the row's own k and v and nothing else changes") {
    RopeCase c(DType::f32, 1, 2, 3, 8, 0);
    ActBuffer q(DType::f32, 16), k(DType::f32, c.pool_size()), v(DType::f32, c.pool_size());
    for (size_t i = 0; i < v.size(); ++i) v.set(i, -9.0f);
    cpu_table().rope_kv(c.params(q, k, v), {0, 1});
    for (size_t i = 0; i < v.size(); ++i) {
      const size_t head = i / (64 * 8) % 3, token = i / 8 % 64, page = i / (3 * 64 * 8);
      const bool is_mine = page == 1 && token == 5;
      REQUIRE(v.get(i) == (is_mine ? c.qkv.get((2 + 3 + head) * 8 + i % 8) : -9.0f));
    }
  }

  TEST_CASE("rotate_q turns queries back to the largest position, and keeps earlier ones") {
    for (const Isa isa : usable_isas())
      for (const DType act : kActs)
        for (const int d : {2, 34, 64, 128}) {
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(act));
          CAPTURE(d);
          // True angles here, so that turns add up: position 16 and 11 back is position 5.
          RopeCase c(act, 1, 3, 1, d, 1);
          for (int t = 0; t < RopeCase::kPositions; ++t)
            for (int i = 0; i < d / 2; ++i) {
              const double angle = t * std::pow(10000.0, -2.0 * i / d);
              c.cosine[static_cast<size_t>(t * (d / 2) + i)] = static_cast<float>(std::cos(angle));
              c.sine[static_cast<size_t>(t * (d / 2) + i)] = static_cast<float>(std::sin(angle));
            }
          const auto n = static_cast<size_t>(3 * d);
          ActBuffer at5(act, n), at16(act, n), moved(act, n), k(act, c.pool_size()),
              v(act, c.pool_size());
          c.pos[0] = 16;
          cpu_table(isa).rope_kv(c.params(at16, k, v), {0, 1});
          c.pos[0] = 5;
          cpu_table(isa).rope_kv(c.params(at5, k, v), {0, 1});
          int32_t pos = 16;
          RotateQParams p{.out = moved.data(),
                          .q = at16.data(),
                          .cos_table = c.cosine.data(),
                          .sin_table = c.sine.data(),
                          .pos = &pos,
                          .max_pos = 5,
                          .n_rows = 1,
                          .n_heads = 3,
                          .head_dim = d,
                          .act = act};
          cpu_table(isa).rotate_q(p, {0, 1});
          // Rounded to act twice instead of once; |q| <= 2 turns into at most 2 sqrt(2).
          const double tolerance = 3 * (spacing(act) + 2 * spacing(DType::f32)) * 2;
          REQUIRE_CLOSE(moved, at5, ([&](size_t) { return tolerance; }));
          // A table times a power of two, taken back.
          for (size_t at = 0; at < c.cosine.size(); ++at) {
            c.cosine[at] *= 4;
            c.sine[at] *= 4;
          }
          ActBuffer scaled(act, n);
          p.out = scaled.data();
          p.scale = 0.25f;
          cpu_table(isa).rotate_q(p, {0, 1});
          REQUIRE_CLOSE(scaled, moved, ([&](size_t) { return 0.0; }));
          p.q = moved.data();  // in place
          p.out = moved.data();
          for (const int32_t kept : {0, 4, 5}) {
            pos = kept;
            ActBuffer before = moved;
            cpu_table(isa).rotate_q(p, {0, 1});
            REQUIRE_CLOSE(moved, before, ([](size_t) { return 0.0; }));
          }
        }
  }
}
