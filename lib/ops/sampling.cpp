#include "ops/sampling.h"

#include "base/check.h"
#include "ops/operation.h"
#include "ops/row_workspace.h"

namespace tandem::ops {
namespace {

template <class Params>
void run_rows(void (*kernel)(const Params&, Range), const Params& p) {
  run_with_workspace(kernel, p, p.n_rows, sample_workspace_bytes(p.vocab));
}

void run_stats(const LogitStatsParams& p) {
  parallel_ranges(p.n_rows, 1, [&](int begin, int end) {
    cpu_table().logit_stats(p, Range{begin, end});
  });
}

/// What a draw on a GPU writes in addition to the tokens.
void write_logprobs(const SampleParams& p) {
  const auto n = static_cast<size_t>(p.n_rows);
  std::vector<int32_t> argmax(n);
  std::vector<float> max(n), lse(n);
  run_stats({argmax.data(), max.data(), lse.data(), p.logits, p.n_rows, p.vocab});
  if (p.lse != nullptr) std::ranges::copy(lse, p.lse);
  for (size_t r = 0; p.logprobs != nullptr && r < n; ++r) {
    const int32_t token = std::max(p.tokens[r], 0);
    p.logprobs[r] =
        p.logits[r * static_cast<size_t>(p.vocab) + static_cast<size_t>(token)] - lse[r];
  }
}

int rows_of(const Tensor& logits) { return static_cast<int>(logits.rows()); }
}  // namespace

void check_valid(std::span<const int32_t> tokens) {
  for (size_t r = 0; r < tokens.size(); ++r)
    if (tokens[r] == kInvalidToken)
      throw make_error(ErrorKind::numeric, "logits", "row {} holds NaN or infinity", r)
          .hint(
              "set model.compute to f32 in case values overflow; if that fails, the checkpoint may "
              "be damaged");
}

LogitStats logit_stats(const Tensor& logits) {
  const auto n = static_cast<size_t>(logits.rows());
  LogitStats stats{std::vector<int32_t>(n), std::vector<float>(n), std::vector<float>(n)};
  const LogitStatsParams p{.argmax = stats.argmax.data(),
                           .max = stats.max.data(),
                           .lse = stats.lse.data(),
                           .logits = logits.as<float>(),
                           .n_rows = rows_of(logits),
                           .vocab = vocab_of(logits)};
  run_stats(p);
  check_valid(stats.argmax);
  return stats;
}

void sample(const SampleParams& p, Stream stream) {
  if (stream.handle == nullptr) {
    run_rows(cpu_table().sample, p);
    if (p.lse != nullptr || p.logprobs != nullptr) write_logprobs(p);
    return;
  }
  launch(TANDEM_KERNEL(sample), p, stream);
}

void top_n(const TopNParams& p, Stream stream) {
  if (stream.handle == nullptr) return run_rows(cpu_table().top_n, p);
  launch(TANDEM_KERNEL(top_n), p, stream);
}

void widen_rows(const WidenRowsParams& p, Stream stream) {
  TANDEM_OPERATION(widen_rows).run(p, p.n_rows, p.to * int64_t{sizeof(float)}, stream);
}

}  // namespace tandem::ops
