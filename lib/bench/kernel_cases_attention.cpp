// Attention over paged keys: prefill of a whole context, one decode row, and the rows of a round of
// speculation, which may leave the scores of all keys to choose by.
#include <cmath>
#include <numeric>

#include "base/convert.h"
#include "base/parallel.h"
#include "bench/kernel_data.h"
#include "kernels/attention/attention_cpu.h"

namespace tandem::bench {
namespace {

constexpr int kVerifyRows = 5;  // four drafted tokens and the last one

/// One sequence of `context` tokens of which the last n_rows are new; as many layers' pools as
/// `copies`.
struct AttentionData {
  OwnedTensor q, out;
  std::vector<OwnedTensor> k, v;
  OwnedTensor workspace;
  std::vector<int32_t> pages, row_begin, base;
  std::vector<f16> scores;
  std::vector<float> score_lse;
  AttentionParams params{};
  size_t turn = 0;

  AttentionData(const KernelShapes& s, int n_rows, int context, int copies)
      // Large queries weigh few keys: results are far from 0, and errors in the weights show.
      : q(OwnedTensor::random(s.act(), {n_rows, s.n_heads, s.head_dim}, 0, 4)),
        out(s.act(), {n_rows, s.n_heads, s.head_dim}),
        workspace(
            DType::u8,
            {static_cast<int64_t>(attention_cpu_workspace_bytes({.max_seqs = 1,
                                                                 .max_rows = n_rows,
                                                                 .max_tokens = context,
                                                                 .n_heads = s.n_heads,
                                                                 .n_kv_heads = s.n_kv_heads,
                                                                 .head_dim = s.head_dim,
                                                                 .threads = max_threads()}))}),
        pages(static_cast<size_t>((context + kPageTokens - 1) / kPageTokens)),
        row_begin{0, n_rows},
        base{context - n_rows} {
    const auto n_pages = static_cast<int64_t>(pages.size());
    for (int i = 0; i < copies; ++i) {
      const auto id = static_cast<uint32_t>(2 * i + 1);
      k.push_back(
          OwnedTensor::random(s.act(), {n_pages, s.n_kv_heads, kPageTokens, s.head_dim}, id));
      v.push_back(
          OwnedTensor::random(s.act(), {n_pages, s.n_kv_heads, kPageTokens, s.head_dim}, id + 1));
    }
    std::iota(pages.begin(), pages.end(), 0);
    params.out = out.raw();
    params.q = q.raw();
    params.page_table = pages.data();
    params.row_begin = row_begin.data();
    params.base = base.data();
    params.dtype = params.out_dtype = s.act();
    params.n_seqs = 1;
    params.max_pages = static_cast<int>(n_pages);
    params.n_heads = s.n_heads;
    params.n_kv_heads = s.n_kv_heads;
    params.head_dim = s.head_dim;
    params.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    use(0);
  }
  void want_scores() {
    scores.resize(static_cast<size_t>(params.n_kv_heads) * pages.size() * kPageTokens);
    score_lse.assign(static_cast<size_t>(params.n_heads), 1.0f);
    params.scores = {.at = scores.data(),
                     .lse = score_lse.data(),
                     .head_stride = static_cast<int64_t>(pages.size()) * kPageTokens};
  }

  void use(size_t copy) {
    turn = copy;
    params.k_pool = k[copy].raw();
    params.v_pool = v[copy].raw();
  }
  void run() {
    attention_cpu(params, workspace.raw());
    use((turn + 1) % k.size());
  }

  /// Some rows against the reference, which is slow.
  std::string mismatch() {
    use((turn + k.size() - 1) % k.size());
    const OwnedTensor want(params.dtype, {out.view().rows(), params.n_heads, params.head_dim});
    const int64_t rows = out.view().rows(), width = out.view().row_size();
    // Values are within sqrt(3): four spacings' halves of bf16 (kernels/attention/attention.h), and
    // for f32 a sum over the keys with weights of sum 1.
    const double tolerance = std::sqrt(3.0) * (params.dtype == DType::bf16 ? 0x1p-6 : 0x1p-18);
    AttentionParams reference = params;
    reference.out = want.raw();
    for (int64_t r = 0; r < rows; r += 1 + rows / 4) {
      attention_ref(reference, {static_cast<int>(r), static_cast<int>(r) + 1});
      for (int64_t i = r * width; i < (r + 1) * width; ++i)
        if (!(std::abs(double{out.get(i)} - want.get(i)) <= tolerance))
          return fmt::format("row {}, element {} is {}, the reference gives {}", r, i % width,
                             out.get(i), want.get(i));
    }
    return scores.empty() ? std::string() : score_mismatch();
  }
  std::string score_mismatch() {
    std::vector<f16> want(scores.size());
    AttentionParams reference = params;
    reference.scores.at = want.data();
    key_scores_ref(reference, 0);
    for (int h = 0; h < params.n_kv_heads; ++h)
      for (int t = 0; t < base[0]; ++t) {
        const size_t at = static_cast<size_t>(h * params.scores.head_stride + t);
        const double a = to_float(scores[at]), b = to_float(want[at]);
        // Products of elements within sqrt(3), summed in f32, and a rounding to f16.
        if (!(std::abs(a - b) <= 0x1p-10 * std::abs(b) + 0x1p-12))
          return fmt::format("head {}, key {} has the score {}, the reference gives {}", h, t, a,
                             b);
      }
    return {};
  }
};

KernelCase attention_case(const KernelShapes& s, std::string name, int n_rows, int context,
                          bool scored = false) {
  const double act_bytes = static_cast<double>(dtype_bytes(s.act()));
  const double kv = 2.0 * context * s.n_kv_heads * s.head_dim * act_bytes;
  const double io = 2.0 * n_rows * s.n_heads * s.head_dim * act_bytes;
  // Row i of n sees context - n + i + 1 keys: 2 d for the score, 2 d for the value, each.
  const double pairs = n_rows * (context - n_rows + (n_rows + 1) / 2.0);
  const int copies = n_rows < context ? rotating_copies(static_cast<size_t>(kv)) : 1;
  return {.family = "attention",
          .name = std::move(name),
          .shape = fmt::format("{} rows, {} keys, {}/{} x {}", n_rows, context, s.n_heads,
                               s.n_kv_heads, s.head_dim),
          .dtype = s.act(),
          .work = {.bytes = kv + io, .flops = 4.0 * s.head_dim * s.n_heads * pairs},
          .memory_bytes = static_cast<size_t>(kv * copies + io),
          .rotates = copies > 1,
          .prepare = [=]() -> PreparedCase {
            const auto data = std::make_shared<AttentionData>(s, n_rows, context, copies);
            if (scored) data->want_scores();
            return {.run = [=] { data->run(); }, .mismatch = [=] { return data->mismatch(); }};
          }};
}

}  // namespace

KernelCases attention_cases(const KernelShapes& s) {
  const int context = static_cast<int>(s.context);
  return {attention_case(s, "decode", 1, context),
          attention_case(s, "verify", kVerifyRows, context),
          attention_case(s, "verify-scored", kVerifyRows, context, true),
          attention_case(s, "prefill", context, context)};
}

}  // namespace tandem::bench
