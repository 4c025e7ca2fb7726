#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "gpu/attention_on_device.h"

using namespace tandem;
using namespace tandem::test;
using cuda::GpuIsa;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void check_against_reference(const AttentionSpec& spec) {
  AttentionCase c(spec);
  const AttentionOnDevice device(c);
  for (const GpuIsa body : many_rows_bodies()) {
    CAPTURE(static_cast<int>(body));
    device.run_many(body);
    compare(device, c, c.params());
  }
}

/// Every element of one body against the other's, or where there is one, against those of the same
/// rows with their tiles in another order; the reference has checked a sample.
void check_against_each_other(const AttentionSpec& spec, int max_tokens) {
  AttentionCase c(spec);
  const AttentionOnDevice device(c, 0, max_tokens), plain(c);
  plain.run_many(GpuIsa::portable);
  const std::vector<float> want = plain.out(), want_lse = plain.lse();
  device.run_many(many_rows_bodies().back());
  const std::vector<float> got = device.out(), got_lse = device.lse();
  const Tolerance tol = tolerance(spec, keys_of(spec));
  double worst = 0, worst_lse = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(double{got[i]} - want[i]);
    worst = error <= worst ? worst : error;  // a NaN stays
  }
  for (size_t i = 0; i < want_lse.size(); ++i) {
    const double error = std::abs(double{got_lse[i]} - want_lse[i]);
    worst_lse = error <= worst_lse ? worst_lse : error;
  }
  INFO(spec.text());
  CHECK(worst <= 2 * tol.out);  // either may be off by one tolerance
  CHECK(worst_lse <= 2 * tol.lse);
}

constexpr std::array kBases = {0, 1, 63, 64, 127, 128, 500, 1000, 2100};
constexpr std::array kRows = {1, 5, 31, 32, 33, 64, 65, 127, 128, 129, 300};

/// Chains, which each body has a fast path for.
void check_fast_grid(int d) {
  uint32_t n = 0;
  for (const int group : {1, 2, 4, 8, 3, 16})
    for (const int base : kBases)
      for (const int kind : {0, 1, 3, 4, 6}) {
        AttentionSpec s{.d = d, .group = group, .kv_heads = n % 3 == 0 ? 2 : 1};
        s.dtype = DType::bf16;
        s.out_dtype = n % 2 == 0 ? DType::bf16 : DType::f32;
        s.seed = n;
        s.seqs = {{base, kRows[n % kRows.size()]}};
        apply_mask(s, kind);
        check_against_reference(s);
        ++n;
      }
}

/// Everything else.
void check_portable_grid(DType dtype) {
  uint32_t n = 0;
  for (const int d : {32, 64, 80, 128, 256, 2, 34, 130})
    for (const int group : {1, 2, 4, 8, 3})
      for (const int base : {0, 63, 700}) {
        AttentionSpec s{.d = d, .group = group, .kv_heads = n % 3 == 0 ? 2 : 1, .dtype = dtype};
        s.out_dtype = n % 2 == 0 ? DType::f32 : dtype;
        s.seed = n;
        s.seqs = {{base, kRows[n % kRows.size()]}};
        apply_mask(s, static_cast<int>((n / 7 + n) % kMasks));
        check_against_reference(s);
        ++n;
      }
}

}  // namespace

TEST_SUITE("gpu/kernels/attention_many_rows") {
  TEST_CASE("bf16, d 128 agrees with the reference") { check_fast_grid(128); }
  TEST_CASE("bf16, d 64 agrees with the reference") { check_fast_grid(64); }
  TEST_CASE("bf16, any d and trees agree with the reference") { check_portable_grid(DType::bf16); }
  TEST_CASE("f32 agrees with the reference") { check_portable_grid(DType::f32); }

  TEST_CASE("every element of many tiles, in sections of heads or side by side") {
    for (const int d : {128, 64, 256})
      for (const int max_tokens : {0, 200000})
        for (const int kind : {0, 1}) {
          AttentionSpec s{.d = d, .group = 4, .kv_heads = 3, .dtype = DType::bf16};
          s.out_dtype = DType::bf16;
          s.seqs = {{130, 2500}, {0, 700}, {1000, 1}, {64, 1029}};
          if (kind == 1) s.window = 700, s.sinks = 150;
          check_against_each_other(s, max_tokens);
        }
  }

  TEST_CASE("ragged batches: different bases, empty sequences, prefill beside decode") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 128, 80})
        for (const int group : {1, 3, 4})
          for (int mask = 0; mask < kMasks; ++mask) {
            if (d == 80 && mask % 2 == 0) continue;
            AttentionSpec s{.d = d, .group = group, .kv_heads = 2, .dtype = dtype, .seed = 5};
            s.seqs = {{0, 70},  {1023, 1}, {0, 0},   {0, 1},     {64, 3},
                      {900, 5}, {300, 0},  {63, 66}, {130, 140}, {0, 0}};
            apply_mask(s, mask);
            check_against_reference(s);
          }
  }

  TEST_CASE("rows behind tentative ones, in trees and chains, beside sequences without any") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 128, 256})
        for (int mask = 0; mask < kMasks; ++mask) {
          AttentionSpec s{.d = d, .group = 3, .kv_heads = 2, .dtype = dtype, .seed = 7};
          s.seqs = {{0, 70}, {1023, 1}, {0, 0}, {64, 30}, {900, 17}, {63, 66}, {130, 140}};
          add_tentative(s, {1, 40, 0, 70, 7, 200, 130});
          apply_mask(s, mask);
          check_against_reference(s);
        }
  }

  TEST_CASE("more sequences than one launch takes") {
    AttentionSpec s{.d = 64, .group = 2, .kv_heads = 1, .dtype = DType::bf16};
    for (int i = 0; i < 1100; ++i) s.seqs.push_back({i % 7, i % 3});
    check_against_reference(s);
  }

  TEST_CASE("an empty set of keys gives out = 0 and lse = -inf") {
    for (const int d : {80, 64, 128})
      for (const bool tree : {false, true}) {
        AttentionSpec s{.d = d, .group = 4, .kv_heads = 1, .dtype = DType::bf16};
        s.seqs = {{500, 20}};
        s.key_lo = 510;  // rows 0..9 of a chain see nothing
        s.tree = tree;
        check_against_reference(s);
        s.key_lo = 5000;  // nobody sees anything
        AttentionCase c(s);
        const AttentionOnDevice device(c);
        for (const GpuIsa body : many_rows_bodies()) {
          device.run_many(body);
          const std::vector<float> lse = device.lse(), out = device.out();
          CHECK(std::all_of(lse.begin(), lse.end(), [](float x) { return x == -kInf; }));
          CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == 0.0f; }));
        }
      }
  }

  TEST_CASE("each sequence may have a first key of its own; lse may be null") {
    for (const int d : {64, 80, 128}) {
      AttentionSpec s{.d = d, .group = 2, .kv_heads = 2, .dtype = DType::bf16};
      s.seqs = {{900, 40}, {70, 1}, {300, 4}};
      AttentionCase c(s);
      AttentionOnDevice device(c);
      const std::vector<int32_t> key_lo = {130, 0, 302};
      const DeviceBuffer own(key_lo);
      device.params().seq_key_lo = own.as<int32_t>();
      AttentionParams reference = c.params();
      reference.seq_key_lo = key_lo.data();
      for (const GpuIsa body : many_rows_bodies()) {
        float* const lse = device.params().lse;
        device.run_many(body);
        compare(device, c, reference);
        const auto with_lse = device.out_bytes();
        device.params().lse = nullptr;
        device.run_many(body);
        CHECK(device.out_bytes() == with_lse);
        device.params().lse = lse;
      }
    }
  }

  TEST_CASE("the same bits on every run") {
    for (const int d : {128, 64, 256}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
      s.out_dtype = DType::bf16;
      s.seqs = {{1500, 300}, {0, 1111}};
      AttentionCase c(s);
      const AttentionOnDevice device(c);
      for (const GpuIsa body : many_rows_bodies()) {
        device.run_many(body);
        const auto first = device.out_bytes();
        const auto first_lse = device.lse();
        for (int i = 0; i < 20; ++i) {
          device.run_many(body);
          REQUIRE(device.out_bytes() == first);
          REQUIRE(device.lse() == first_lse);
        }
      }
    }
  }

  TEST_CASE("the same bits whatever the chunks and the batch") {
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int d : {128, 64, 80})
        for (const int group : {4, 3})
          for (const int window : {0, 200}) {
            AttentionSpec s{.d = d, .group = group, .kv_heads = 2, .dtype = dtype};
            s.out_dtype = dtype;
            s.window = window;
            s.sinks = 3;
            s.seqs = {{0, 700}};
            AttentionCase whole(s);
            const AttentionOnDevice all(whole);
            const size_t row_bytes = whole.row_values() * dtype_bytes(dtype);
            for (const SeqShape chunk : {SeqShape{0, 129}, {129, 1}, {130, 70}, {200, 500}}) {
              s.seqs = {chunk, {10, 100}};
              AttentionCase part(s);
              const AttentionOnDevice device(part);
              for (const GpuIsa body : many_rows_bodies()) {
                all.run_many(body);
                const auto want = all.out_bytes();
                device.run_many(body);
                const auto got = device.out_bytes();
                CAPTURE(s.text());
                const auto n = static_cast<ptrdiff_t>(static_cast<size_t>(chunk.rows) * row_bytes);
                const auto at = static_cast<ptrdiff_t>(static_cast<size_t>(chunk.base) * row_bytes);
                CHECK(std::equal(got.begin(), got.begin() + n, want.begin() + at));
              }
            }
          }
  }

  TEST_CASE("one graph serves growing lengths") {
    for (const int d : {128, 80}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
      s.seqs = {{1400, 90}, {700, 40}};
      AttentionCase c(s);
      AttentionOnDevice device(c);
      for (const GpuIsa body : many_rows_bodies()) {
        const cuda::Graph graph(queue(), [&] { device.run_many(body); });
        for (const std::vector<int32_t>& base :
             {std::vector<int32_t>{0, 0}, {1, 63}, {511, 1}, {1400, 700}}) {
          device.set_base(base);
          graph.launch(queue());
          AttentionParams reference = c.params();
          reference.base = base.data();
          compare(device, c, reference);
        }
      }
    }
  }
}
