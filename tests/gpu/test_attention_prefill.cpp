#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "gpu/device_buffer.h"
#include "kernels/attention_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using Launcher = void (*)(const AttentionParams&, const AttentionRows&, Stream);

/// Copies of a case's arrays on the GPU, and calls over them.
class PrefillOnDevice {
 public:
  explicit PrefillOnDevice(AttentionCase& c)
      : host_(c.params()),
        rows_(static_cast<size_t>(c.n_rows())),
        q_(host_.q, rows_ * c.row_values() * dtype_bytes(host_.dtype)),
        k_(host_.k_pool, pool_bytes()),
        v_(host_.v_pool, pool_bytes()),
        table_(host_.page_table, seqs() * static_cast<size_t>(host_.max_pages) * 4),
        begins_(host_.row_begin, (seqs() + 1) * 4),
        bases_(host_.base, seqs() * 4),
        pos_(host_.pos, host_.pos == nullptr ? 0 : rows_ * 4),
        mask_(host_.tree_mask,
              host_.tree_mask == nullptr ? 0 : rows_ * static_cast<size_t>(host_.mask_words) * 8),
        out_(rows_ * c.row_values() * dtype_bytes(host_.out_dtype)),
        lse_(rows_ * static_cast<size_t>(host_.n_heads) * 4),
        params(host_) {
    bounds = {c.n_rows(), 0, 0};
    for (size_t s = 0; s < seqs(); ++s) {
      const int n = host_.row_begin[s + 1] - host_.row_begin[s];
      bounds.max_rows_a_seq = std::max(bounds.max_rows_a_seq, n);
      bounds.max_tokens = std::max(bounds.max_tokens, host_.base[s] + n);
    }
    params.q = q_.raw();
    params.k_pool = k_.raw();
    params.v_pool = v_.raw();
    params.page_table = table_.as<int32_t>();
    params.row_begin = begins_.as<int32_t>();
    params.base = bases_.as<int32_t>();
    if (host_.pos != nullptr) params.pos = pos_.as<int32_t>();
    if (host_.tree_mask != nullptr) params.tree_mask = mask_.as<uint64_t>();
    params.out = out_.raw();
    params.lse = lse_.as<float>();
  }

  void run(Launcher launch = cuda_table().attention_many_rows) const {
    launch(params, bounds, queue().stream());
    cuda::launched("attention_many_rows", queue().stream());
  }
  void set_base(const std::vector<int32_t>& base) const {
    queue().copy_in(bases_.raw(), base.data(), base.size() * 4);
  }
  std::vector<unsigned char> out_bytes() const { return out_.vector<unsigned char>(); }
  std::vector<float> lse() const { return lse_.vector<float>(); }
  std::vector<float> out() const {
    if (host_.out_dtype == DType::f32) return out_.vector<float>();
    std::vector<float> wide;
    for (const bf16 x : out_.vector<bf16>()) wide.push_back(to_float(x));
    return wide;
  }

 private:
  size_t seqs() const { return static_cast<size_t>(host_.n_seqs); }
  size_t pool_bytes() const {
    return seqs() * static_cast<size_t>(host_.max_pages) * static_cast<size_t>(host_.n_kv_heads) *
           kPageTokens * static_cast<size_t>(host_.head_dim) * dtype_bytes(host_.dtype);
  }

  AttentionParams host_;
  size_t rows_;
  DeviceBuffer q_, k_, v_, table_, begins_, bases_, pos_, mask_, out_, lse_;

 public:
  AttentionParams params;  // over device memory
  AttentionRows bounds;
};

int keys_of(const AttentionSpec& s) {
  int n = 0;
  for (const SeqShape& q : s.seqs) n = std::max(n, q.base + q.rows);
  return n;
}

/// Compares sampled rows with attention_ref, whose parameters may differ from the case's.
void compare(const PrefillOnDevice& got, AttentionCase& want, const AttentionParams& reference) {
  const AttentionSpec& spec = want.spec();
  const Tolerance tol = tolerance(spec, keys_of(spec));
  const size_t heads = static_cast<size_t>(spec.group * spec.kv_heads),
               d = static_cast<size_t>(spec.d);
  const std::vector<float> out = got.out(), lse = got.lse();
  for (const int row : rows_to_check(spec)) {
    attention_ref(reference, {row, row + 1});
    for (size_t at = static_cast<size_t>(row) * heads; at < (static_cast<size_t>(row) + 1) * heads;
         ++at) {
      const float a = lse[at], b = want.lse()[at];
      INFO(spec.text(), " row ", row, " head ", at % heads, " lse ", a, " expected ", b);
      REQUIRE((b == -kInf ? a == -kInf : std::abs(a - b) <= tol.lse));
      for (size_t c = 0; c < d; ++c) {
        const bool close = std::abs(double{out[at * d + c]} - want.out(at * d + c)) <= tol.out;
        if (close) continue;
        INFO("column ", c, " is ", out[at * d + c], " expected ", want.out(at * d + c));
        REQUIRE(close);
      }
    }
  }
  for (size_t i = 0; i < out.size(); ++i)  // rows outside the sample were written too
    if (!(std::abs(out[i]) <= 1.0f)) FAIL(spec.text(), " value ", i, " is ", out[i]);
}

void check_against_reference(const AttentionSpec& spec) {
  AttentionCase c(spec);
  const PrefillOnDevice device(c);
  device.run();
  compare(device, c, c.params());
}

/// Every element of the Hopper body beside the portable one's, which the reference has checked.
void check_against_portable(const AttentionSpec& spec, int max_tokens) {
  AttentionCase c(spec);
  PrefillOnDevice device(c);
  device.bounds.max_tokens = std::max(device.bounds.max_tokens, max_tokens);
  device.run(attention_many_rows_portable_cuda);
  const std::vector<float> want = device.out(), want_lse = device.lse();
  device.run();
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

/// Chains on the Hopper body.
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
    for (const int d : {128, 64})
      for (const int max_tokens : {0, 200000})
        for (const int kind : {0, 1}) {
          AttentionSpec s{.d = d, .group = 4, .kv_heads = 3, .dtype = DType::bf16};
          s.out_dtype = DType::bf16;
          s.seqs = {{130, 2500}, {0, 700}, {1000, 1}, {64, 1029}};
          if (kind == 1) s.window = 700, s.sinks = 150;
          check_against_portable(s, max_tokens);
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
        const PrefillOnDevice device(c);
        device.run();
        const std::vector<float> lse = device.lse(), out = device.out();
        CHECK(std::all_of(lse.begin(), lse.end(), [](float x) { return x == -kInf; }));
        CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == 0.0f; }));
      }
  }

  TEST_CASE("each sequence may have a first key of its own; lse may be null") {
    for (const int d : {64, 80, 128}) {
      AttentionSpec s{.d = d, .group = 2, .kv_heads = 2, .dtype = DType::bf16};
      s.seqs = {{900, 40}, {70, 1}, {300, 4}};
      AttentionCase c(s);
      PrefillOnDevice device(c);
      const std::vector<int32_t> key_lo = {130, 0, 302};
      const DeviceBuffer own(key_lo);
      device.params.seq_key_lo = own.as<int32_t>();
      device.run();
      AttentionParams reference = c.params();
      reference.seq_key_lo = key_lo.data();
      compare(device, c, reference);
      const auto with_lse = device.out_bytes();
      device.params.lse = nullptr;
      device.run();
      CHECK(device.out_bytes() == with_lse);
    }
  }

  TEST_CASE("the same bits on every run") {
    for (const int d : {128, 64}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
      s.out_dtype = DType::bf16;
      s.seqs = {{1500, 300}, {0, 1111}};
      AttentionCase c(s);
      const PrefillOnDevice device(c);
      device.run();
      const auto first = device.out_bytes();
      const auto first_lse = device.lse();
      for (int i = 0; i < 20; ++i) {
        device.run();
        REQUIRE(device.out_bytes() == first);
        REQUIRE(device.lse() == first_lse);
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
            const PrefillOnDevice all(whole);
            all.run();
            const auto want = all.out_bytes();
            const size_t row_bytes = whole.row_values() * dtype_bytes(dtype);
            for (const SeqShape chunk : {SeqShape{0, 129}, {129, 1}, {130, 70}, {200, 500}}) {
              s.seqs = {chunk, {10, 100}};
              AttentionCase part(s);
              const PrefillOnDevice device(part);
              device.run();
              const auto got = device.out_bytes();
              CAPTURE(s.text());
              const auto n = static_cast<ptrdiff_t>(static_cast<size_t>(chunk.rows) * row_bytes);
              const auto at = static_cast<ptrdiff_t>(static_cast<size_t>(chunk.base) * row_bytes);
              CHECK(std::equal(got.begin(), got.begin() + n, want.begin() + at));
            }
          }
  }

  TEST_CASE("one graph serves growing lengths") {
    for (const int d : {128, 80}) {
      AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
      s.seqs = {{1400, 90}, {700, 40}};
      AttentionCase c(s);
      const PrefillOnDevice device(c);
      const cuda::Graph graph(queue(), [&] { device.run(); });
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
