#pragma once
// An attention case in device memory, run by the kernels of few rows and of many.
#include <algorithm>

#include "gpu/device_buffer.h"
#include "kernels/attention/few_rows_plan.h"
#include "kernels/attention_case.h"

namespace tandem::test {

/// Counters and workspace for calls within bounds. The workspace holds junk, the counters begin as
/// zeros and must end so.
class FewRowsMemory {
 public:
  explicit FewRowsMemory(const AttentionBounds& b)
      : workspace_(attention_few_rows_workspace_bytes(b)),
        counters_(std::vector<unsigned char>(attention_few_rows_counter_bytes(b))) {}
  ~FewRowsMemory() {
    const auto counts = counters_.vector<unsigned char>();
    CHECK(std::all_of(counts.begin(), counts.end(), [](unsigned char c) { return c == 0; }));
  }
  AttentionLaunch launch(int max_rows_a_seq, int max_tokens, bool keys_settled) const {
    return {max_rows_a_seq, max_tokens, keys_settled, counters_.raw(), workspace_.raw()};
  }

 private:
  DeviceBuffer workspace_, counters_;
};

/// Copies of a case's arrays, and the call over them. Bounds are the case's own unless given.
class AttentionOnDevice {
 public:
  explicit AttentionOnDevice(AttentionCase& c, int max_rows = 0, int max_tokens = 0)
      : host_(c.params()),
        n_rows_(c.n_rows()),
        row_begin_(host_.row_begin, seqs() + 1),
        base_(host_.base, seqs()),
        q_(bytes_of(host_.q, rows() * c.row_values() * dtype_bytes(host_.dtype))),
        k_(bytes_of(host_.k_pool, pool_bytes())),
        v_(bytes_of(host_.v_pool, pool_bytes())),
        table_(bytes_of(host_.page_table, seqs() * static_cast<size_t>(host_.max_pages) * 4)),
        begins_(row_begin_.memory),
        bases_(base_.memory),
        tentative_(bytes_of(host_.tentative, host_.tentative == nullptr ? 0 : seqs() * 4)),
        pos_(bytes_of(host_.pos, host_.pos == nullptr ? 0 : rows() * 4)),
        mask_(
            bytes_of(host_.tree_mask, host_.tree_mask == nullptr ? 0 : rows() * mask_words() * 8)),
        out_(rows() * c.row_values() * dtype_bytes(host_.out_dtype)),
        lse_(rows() * static_cast<size_t>(host_.n_heads) * 4),
        max_rows_(max_rows),
        max_tokens_(max_tokens) {
    for (size_t s = 0; s < seqs(); ++s) {
      const int n = row_begin_.memory[s + 1] - row_begin_.memory[s];
      max_rows_ = std::max(max_rows_, n);
      max_tokens_ = std::max(max_tokens_, c.spec().seqs[s].keys());
    }
    params_ = host_;
    params_.q = q_.raw();
    params_.k_pool = k_.raw();
    params_.v_pool = v_.raw();
    params_.page_table = table_.as<int32_t>();
    params_.row_begin = begins_.as<int32_t>();
    params_.base = bases_.as<int32_t>();
    params_.tentative = host_.tentative == nullptr ? nullptr : tentative_.as<int32_t>();
    params_.pos = host_.pos == nullptr ? nullptr : pos_.as<int32_t>();
    params_.tree_mask = host_.tree_mask == nullptr ? nullptr : mask_.as<uint64_t>();
    params_.out = out_.raw();
    params_.lse = lse_.as<float>();
  }

  AttentionParams& params() { return params_; }
  const AttentionParams& params() const { return params_; }
  /// The case's own parameters, over host memory.
  const AttentionParams& host() const { return host_; }
  int max_rows() const { return max_rows_; }
  int max_tokens() const { return max_tokens_; }
  AttentionBounds bounds() const {
    return {.max_seqs = host_.n_seqs,
            .max_rows = max_rows_,
            .max_tokens = max_tokens_,
            .n_heads = host_.n_heads,
            .n_kv_heads = host_.n_kv_heads,
            .head_dim = host_.head_dim,
            .multiprocessors = cuda::gpu().multiprocessors,
            .lists = true};
  }
  /// Other committed tokens from now on.
  void set_base(const std::vector<int32_t>& base) {
    queue().copy_in(bases_.raw(), base.data(), base.size() * 4);
  }
  void run(const FewRowsMemory& memory, bool keys_settled = false) const {
    run(memory, keys_settled, cuda::gpu().isa);
  }
  void run(const FewRowsMemory& memory, bool keys_settled, cuda::GpuIsa isa) const {
    cuda_table().attention_few_rows.body(isa)(
        params_, memory.launch(max_rows_, max_tokens_, keys_settled), queue().stream());
    cuda::launched("attention_few_rows", queue().stream());
  }
  void run() const { run(FewRowsMemory(bounds())); }
  std::vector<unsigned char> out_bytes() const { return out_.vector<unsigned char>(); }
  std::vector<float> out() const {
    if (host_.out_dtype == DType::f32) return out_.vector<float>();
    std::vector<float> wide;
    for (const bf16 x : out_.vector<bf16>()) wide.push_back(to_float(x));
    return wide;
  }
  std::vector<float> lse() const { return lse_.vector<float>(); }
  /// By a body of many rows.
  void run_many(cuda::GpuIsa isa) const {
    cuda_table().attention_many_rows.body(isa)(params_, {n_rows_, max_rows_, max_tokens_},
                                               queue().stream());
    cuda::launched("attention_many_rows", queue().stream());
  }

 private:
  struct Ints {
    std::vector<int32_t> memory;
    Ints(const int32_t* p, size_t n) : memory(p, p + n) {}
  };
  static DeviceBuffer bytes_of(const void* p, size_t n) { return {p, n}; }
  size_t seqs() const { return static_cast<size_t>(host_.n_seqs); }
  size_t rows() const { return static_cast<size_t>(n_rows_); }
  size_t mask_words() const { return static_cast<size_t>(host_.mask_words); }
  size_t pool_bytes() const {
    return seqs() * static_cast<size_t>(host_.max_pages) * static_cast<size_t>(host_.n_kv_heads) *
           kPageTokens * static_cast<size_t>(host_.head_dim) * dtype_bytes(host_.dtype);
  }

  AttentionParams host_, params_{};
  int n_rows_;
  Ints row_begin_, base_;
  DeviceBuffer q_, k_, v_, table_, begins_, bases_, tentative_, pos_, mask_, out_, lse_;
  int max_rows_, max_tokens_;
};

/// The bodies of attention of many rows that this GPU runs: the portable one, and Hopper's there.
inline std::vector<cuda::GpuIsa> many_rows_bodies() {
  std::vector<cuda::GpuIsa> bodies = {cuda::GpuIsa::portable};
  if (cuda::gpu().isa == cuda::GpuIsa::hopper && cuda_table().attention_many_rows.has_hoppers())
    bodies.push_back(cuda::GpuIsa::hopper);
  return bodies;
}

/// Keys of the longest sequence.
inline int keys_of(const AttentionSpec& s) {
  int n = 0;
  for (const SeqShape& q : s.seqs) n = std::max(n, q.keys());
  return n;
}

/// Compares with attention_ref, whose parameters may differ from the case's.
inline void compare(const AttentionOnDevice& got, AttentionCase& want,
                    const AttentionParams& reference) {
  const AttentionSpec& spec = want.spec();
  const Tolerance tol = tolerance(spec, keys_of(spec));
  const size_t heads = static_cast<size_t>(spec.group * spec.kv_heads),
               d = static_cast<size_t>(spec.d);
  const std::vector<float> out = got.out(), lse = got.lse();
  for (int row : rows_to_check(spec)) {
    attention_ref(reference, {row, row + 1});
    for (size_t at = static_cast<size_t>(row) * heads; at < (static_cast<size_t>(row) + 1) * heads;
         ++at) {
      const float a = lse[at], b = want.lse()[at];
      INFO(spec.text(), " row ", row, " head ", at % heads, " lse ", a, " expected ", b);
      REQUIRE((a == b || std::abs(a - b) <= tol.lse));  // equal: both -inf
      double worst = 0;
      size_t where = 0;
      for (size_t c = 0; c < d; ++c) {
        const double error = std::abs(double{out[at * d + c]} - want.out(at * d + c));
        if (error <= worst) continue;
        worst = error;  // a NaN stays
        where = c;
        if (std::isnan(error)) break;
      }
      INFO("column ", where, " is ", out[at * d + where], " expected ", want.out(at * d + where));
      REQUIRE(worst <= tol.out);
    }
  }
  // Rows outside the sample were written too: means of values in [-1, 1], but for rounding.
  for (size_t i = 0; i < out.size(); ++i)
    if (!(std::abs(out[i]) <= 1.0 + tol.out)) FAIL(spec.text(), " value ", i, " is ", out[i]);
}

}  // namespace tandem::test
