// Statistics, alternatives and draws from one row of logits: what follows every decode step.
#include <cmath>

#include "bench/kernel_data.h"
#include "kernels/cpu_table.h"

namespace tandem::bench {
namespace {

/// One row like a language model's: a wide body, and a few leaders that hold most of the mass.
OwnedTensor make_logits(int vocab) {
  OwnedTensor logits = OwnedTensor::random(DType::f32, {1, vocab}, 0, 2.5f);
  constexpr int kLeaders = 64;
  for (int i = 0; i < kLeaders; ++i)
    logits.as<float>()[int64_t{i} * 7919 % vocab] += 16.0f - 0.15f * static_cast<float>(i);
  return logits;
}

OwnedTensor make_workspace(int vocab) {
  return {DType::u8, {static_cast<int64_t>(sample_workspace_bytes(vocab))}};
}

PreparedCase prepare_stats(int vocab) {
  const OwnedTensor logits = make_logits(vocab);
  struct Result {
    int32_t argmax = -2;
    float max = 0, lse = 0;
  };
  const auto got = std::make_shared<Result>();
  const auto params = [=](Result& r) {
    return LogitStatsParams{.argmax = &r.argmax,
                            .max = &r.max,
                            .lse = &r.lse,
                            .logits = logits.as<float>(),
                            .n_rows = 1,
                            .vocab = vocab};
  };
  return {.run =
              [=] {
                cpu_table().logit_stats(params(*got), {0, 1});
              },
          .mismatch = [=]() -> std::string {
            Result want;
            logit_stats_ref(params(want), {0, 1});
            const double tolerance = 2e-7 + 28 * 0x1p-24 + 0x1p-23 * std::abs(want.lse);
            if (got->argmax == want.argmax && std::abs(got->lse - want.lse) <= tolerance) return {};
            return fmt::format("argmax {}, lse {}; the reference gives {}, {}", got->argmax,
                               got->lse, want.argmax, want.lse);
          }};
}

PreparedCase prepare_top_n(int vocab, int n) {
  const OwnedTensor logits = make_logits(vocab), workspace = make_workspace(vocab);
  struct Top {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    bool operator==(const Top&) const = default;
  };
  const auto size = static_cast<size_t>(n);
  const auto got = std::make_shared<Top>(Top{std::vector<int32_t>(size), std::vector<float>(size)});
  const auto params = [=](Top& to) {
    static const float kLse = 0;
    return TopNParams{.ids = to.ids.data(),
                      .logprobs = to.logprobs.data(),
                      .logits = logits.as<float>(),
                      .lse = &kLse,
                      .n_rows = 1,
                      .vocab = vocab,
                      .n = n,
                      .workspace = workspace.raw()};
  };
  return {.run =
              [=] {
                cpu_table().top_n(params(*got), {0, 1});
              },
          .mismatch = [=]() -> std::string {
            Top want = *got;
            top_n_ref(params(want), {0, 1});
            return *got == want ? "" : "other ids or log-probabilities than the reference";
          }};
}

struct Rule {
  const char* name;
  float temperature = 1;
  int top_k = 0;
  double top_p = 1, min_p = 0;
};

PreparedCase prepare_sample(int vocab, const Rule& rule) {
  const OwnedTensor logits = make_logits(vocab), workspace = make_workspace(vocab);
  const auto token = std::make_shared<int32_t>(-2);
  const auto draw = [=](SampleFn* fn, double uniform, int32_t& to) {
    fn({.tokens = &to,
        .logits = logits.as<float>(),
        .uniform = &uniform,
        .seen = nullptr,
        .seen_begin = nullptr,
        .n_rows = 1,
        .vocab = vocab,
        .rule = {.repetition_penalty = 1,
                 .temperature = rule.temperature,
                 .top_k = rule.top_k,
                 .top_p = rule.top_p,
                 .min_p = rule.min_p},
        .workspace = workspace.raw()},
       {0, 1});
  };
  constexpr double kUniform = 0.7;
  return {.run = [=] { draw(cpu_table().sample, kUniform, *token); },
          .mismatch = [=]() -> std::string {
            // Tokens ascend with the uniform: those at both sides bracket the right one.
            int32_t low = 0, high = 0;
            draw(sample_ref, kUniform - 2e-6, low);
            draw(sample_ref, kUniform + 2e-6, high);
            if (low <= *token && *token <= high) return {};
            return fmt::format("token {}, the reference gives {} to {}", *token, low, high);
          }};
}

KernelCase one_row(std::string name, int vocab, std::function<PreparedCase()> prepare) {
  return {.family = "sample",
          .name = std::move(name),
          .shape = fmt::format("1 x {}", vocab),
          .dtype = DType::f32,
          .work = {.bytes = 4.0 * vocab},
          .memory_bytes = sample_workspace_bytes(vocab) + 4 * static_cast<size_t>(vocab),
          .prepare = std::move(prepare)};
}

}  // namespace

KernelCases sample_cases(const KernelShapes& s) {
  constexpr Rule kRules[] = {{.name = "greedy", .temperature = 0},
                             {.name = "all"},
                             {.name = "top-k 50", .top_k = 50},
                             {.name = "top-p 0.9", .top_p = 0.9},
                             {.name = "top-p 0.9, flat", .temperature = 50, .top_p = 0.9},
                             {.name = "top-k 50, top-p 0.9, min-p 0.05",
                              .temperature = 0.7f,
                              .top_k = 50,
                              .top_p = 0.9,
                              .min_p = 0.05}};
  const int vocab = s.vocab, n = std::min(20, vocab);
  KernelCases cases = {
      one_row("logit_stats", vocab, [=] { return prepare_stats(vocab); }),
      one_row(fmt::format("top_n {}", n), vocab, [=] { return prepare_top_n(vocab, n); })};
  for (const Rule& rule : kRules)
    cases.push_back(one_row(fmt::format("sample {}", rule.name), vocab,
                            [=] { return prepare_sample(vocab, rule); }));
  return cases;
}

}  // namespace tandem::bench
