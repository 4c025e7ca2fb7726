#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "attention_case.h"
#include "base/convert.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Attention of one spec by the reference: out [rows * heads * d] and lse.
struct State {
  std::vector<float> out, lse;
};
State reference(AttentionSpec s, int key_lo, int key_hi) {
  s.key_lo = key_lo;
  s.key_hi = key_hi;
  AttentionCase c(s);
  c.run_ref({0, c.n_rows()});
  State state{{}, c.lse()};
  for (size_t i = 0; i < static_cast<size_t>(c.n_rows()) * c.row_values(); ++i)
    state.out.push_back(c.out(i));
  return state;
}

MergeStatesParams params_for(State& to, const void* const* o, const float* const* lse, int n,
                             int heads, int d) {
  return {to.out.data(), to.lse.data(), o, lse, DType::f32, DType::f32, n, heads, d};
}

}  // namespace

TEST_SUITE("kernels/merge_states") {
  TEST_CASE("parts of a key range merge to the whole") {
    AttentionSpec s{.d = 80, .group = 3, .kv_heads = 2, .seqs = {{300, 6}, {0, 4}}};
    const State whole = reference(s, 0, INT_MAX);
    State a = reference(s, 0, 2), b = reference(s, 2, 200), c = reference(s, 200, INT_MAX),
          merged = whole;
    const void* o[] = {a.out.data(), b.out.data(), c.out.data()};
    const float* lse[] = {a.lse.data(), b.lse.data(), c.lse.data()};
    std::fill(merged.out.begin(), merged.out.end(), std::nanf(""));
    std::fill(merged.lse.begin(), merged.lse.end(), std::nanf(""));
    merge_states(params_for(merged, o, lse, 3, 6, 80), {0, 10});
    // Parts, weights and sums are rounded to f32 once each: four units on values of at most 1, and
    // on lse, below 8, one of its own units and the parts'.
    for (size_t i = 0; i < whole.out.size(); ++i)
      REQUIRE(std::abs(merged.out[i] - whole.out[i]) <= 4 * 0x1p-23);
    for (size_t i = 0; i < whole.lse.size(); ++i)
      REQUIRE(std::abs(merged.lse[i] - whole.lse[i]) <= 16 * 0x1p-23);
  }

  TEST_CASE("empty parts count for nothing, their o is not read, and only the range is written") {
    const float nan = std::nanf("");
    std::vector<float> full = {1, 2, 3, 4, 5, 6}, junk(6, nan), full_lse = {0.5f, 1.5f},
                       empty = {-kInf, -kInf};
    State to{std::vector<float>(6, -7.0f), {-7.0f, -7.0f}};
    const void* o[] = {junk.data(), full.data(), junk.data()};
    const float* lse[] = {empty.data(), full_lse.data(), empty.data()};
    merge_states(params_for(to, o, lse, 3, 1, 3), {1, 2});
    CHECK(to.out == std::vector<float>{-7, -7, -7, 4, 5, 6});
    CHECK(to.lse == std::vector<float>{-7, 1.5f});
    const float* all_empty[] = {empty.data(), empty.data(), empty.data()};
    merge_states(params_for(to, o, all_empty, 3, 1, 3), {0, 2});
    CHECK(to.out == std::vector<float>(6, 0.0f));
    CHECK(to.lse == empty);
  }

  TEST_CASE("bf16 and f32 in any pairing; weights far apart") {
    const std::vector<float> a32 = {1, 1}, b32 = {2, 4};
    const std::vector<bf16> a16 = {to_bf16(1), to_bf16(1)}, b16 = {to_bf16(2), to_bf16(4)};
    const float lse_a = std::log(3.0f), lse_b = 0.0f, far = -200.0f;
    const float* lse[] = {&lse_a, &lse_b};
    for (DType part : {DType::f32, DType::bf16})
      for (DType out : {DType::f32, DType::bf16}) {
        const bool f32 = part == DType::f32;
        const void* o[] = {f32 ? static_cast<const void*>(a32.data()) : a16.data(),
                           f32 ? static_cast<const void*>(b32.data()) : b16.data()};
        float out32[2];
        bf16 out16[2];
        void* to = out == DType::f32 ? static_cast<void*>(out32) : out16;
        merge_states({to, nullptr, o, lse, part, out, 2, 1, 2}, {0, 1});
        for (int i = 0; i < 2; ++i) {
          const float got = out == DType::f32 ? out32[i] : to_float(out16[i]);
          CHECK(std::abs(got - (i == 0 ? 1.25f : 1.75f)) <= 4 * 0x1p-24);  // weights 3/4 and 1/4
        }
      }
    const float* apart[] = {&lse_a, &far};
    const void* o[] = {a32.data(), b32.data()};
    float to[2], lse_out;
    merge_states({to, &lse_out, o, apart, DType::f32, DType::f32, 2, 1, 2}, {0, 1});
    CHECK(to[0] == 1.0f);
    CHECK(lse_out == lse_a);
  }
}
