// The backward passes of a training step, the loss and the optimizer.
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/parallel.h"
#include "bench/kernel_data.h"
#include "kernels/attention/attention_backward.h"
#include "kernels/attention/attention_cpu.h"
#include "kernels/ffn/gate_mul_backward.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/norm/rms_norm_backward.h"
#include "kernels/optim/optim.h"
#include "ops/backward.h"

namespace tandem::bench {
namespace {

/// Numbers of the optimizer's case: a slice of a model of some billion weights.
constexpr int64_t kTrained = int64_t{1} << 24;
/// Rows of attention's document at most: the reference takes every pair in double.
constexpr int kMostRows = 1024;

OwnedTensor zeros(DType dtype, std::initializer_list<int64_t> shape) {
  OwnedTensor t(dtype, shape);
  std::memset(t.raw(), 0, t.view().bytes());
  return t;
}

PreparedCase prepare_norm(int n_rows, int dim, DType act) {
  const auto dy = OwnedTensor::random(act, {n_rows, dim}, 0);
  const auto x = OwnedTensor::random(act, {n_rows, dim}, 1);
  const auto weight = OwnedTensor::random(DType::f32, {dim}, 2);
  const OwnedTensor got = zeros(DType::f32, {n_rows, dim}), want = zeros(DType::f32, {n_rows, dim});
  constexpr float kEps = 1e-5f;
  return {.run =
              [=] {
                ops::rms_norm_backward(
                    {.dx = got, .dy = dy, .x = x, .weight = weight.as<float>(), .eps = kEps});
              },
          .mismatch =
              [=] {
                rms_norm_backward_ref({.dx = want.as<float>(),
                                       .dy = dy.raw(),
                                       .x = x.raw(),
                                       .weight = weight.as<float>(),
                                       .n_rows = n_rows,
                                       .dim = dim,
                                       .eps = kEps,
                                       .dy_type = act,
                                       .x_type = act},
                                      {0, n_rows});
                // Inputs are within sqrt 3, the root mean square about 1.
                return find_mismatch(got, want, 0, (10 + dim / 8.0) * spacing(DType::f32) * 6);
              }};
}

/// Runs put the gates and ups back that they overwrite.
PreparedCase prepare_gate(int n_rows, int width, DType act) {
  const auto gate_up = OwnedTensor::random(act, {n_rows, 2 * width}, 0, 3.0f);
  const auto da = OwnedTensor::random(act, {n_rows, width}, 1);
  const OwnedTensor got(act, {n_rows, 2 * width}), want(act, {n_rows, 2 * width});
  return {.run =
              [=] {
                parallel_ranges(n_rows, 16, [&](int begin, int end) {
                  const Tensor part = gate_up.view().slice(begin, end - begin);
                  std::memcpy(got.view().slice(begin, end - begin).raw(), part.raw(), part.bytes());
                });
                ops::gate_mul_backward(got, da, {}, nullptr, Gate::silu);
              },
          .mismatch =
              [=] {
                std::memcpy(want.raw(), gate_up.raw(), gate_up.view().bytes());
                gate_mul_backward_ref({.gate_up = want.raw(),
                                       .da = da.raw(),
                                       .a_columns = nullptr,
                                       .columns = nullptr,
                                       .n_rows = n_rows,
                                       .ffn_dim = width,
                                       .n_columns = 0,
                                       .act = act,
                                       .gate = Gate::silu},
                                      {0, n_rows});
                return find_mismatch(got, want, spacing(act), 12 * spacing(DType::f32) * 12);
              }};
}

/// One document and what its forward left.
struct Document {
  OwnedTensor q, k, v, out, dout, dqkv, want;
  std::vector<int32_t> pages, row_begin, slot{0}, base{0};
  std::vector<float> lse;
  OwnedTensor workspace;
  AttentionBackwardParams params{};

  Document(const KernelShapes& s, int n)
      : q(OwnedTensor::random(s.act(), {n, s.n_heads, s.head_dim}, 0)),
        k(OwnedTensor::random(s.act(), {n_pages(n), s.n_kv_heads, kPageTokens, s.head_dim}, 1)),
        v(OwnedTensor::random(s.act(), {n_pages(n), s.n_kv_heads, kPageTokens, s.head_dim}, 2)),
        out(s.act(), {n, s.n_heads, s.head_dim}),
        dout(OwnedTensor::random(s.act(), {n, s.n_heads, s.head_dim}, 3)),
        dqkv(s.act(), {n, s.n_heads + 2 * s.n_kv_heads, s.head_dim}),
        want(s.act(), {n, s.n_heads + 2 * s.n_kv_heads, s.head_dim}),
        pages(static_cast<size_t>(n_pages(n))),
        row_begin{0, n},
        lse(static_cast<size_t>(n * s.n_heads)),
        workspace(DType::u8, {static_cast<int64_t>(bytes(s, n))}) {
    std::iota(pages.begin(), pages.end(), 0);
    AttentionParams forward{};
    forward.out = out.raw();
    forward.lse = lse.data();
    forward.q = q.raw();
    forward.k_pool = k.raw();
    forward.v_pool = v.raw();
    forward.page_table = pages.data();
    forward.row_begin = row_begin.data();
    forward.base = base.data();
    forward.dtype = forward.out_dtype = s.act();
    forward.n_seqs = 1;
    forward.max_pages = static_cast<int>(pages.size());
    forward.n_heads = s.n_heads;
    forward.n_kv_heads = s.n_kv_heads;
    forward.head_dim = s.head_dim;
    forward.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    attention_cpu(forward, workspace.raw());
    params = {.dqkv = dqkv.raw(),
              .dout = dout.raw(),
              .out = out.raw(),
              .lse = lse.data(),
              .q = q.raw(),
              .k_pool = k.raw(),
              .v_pool = v.raw(),
              .page_table = pages.data(),
              .slot = slot.data(),
              .row_begin = row_begin.data(),
              .act = s.act(),
              .n_seqs = 1,
              .max_pages = forward.max_pages,
              .n_heads = s.n_heads,
              .n_kv_heads = s.n_kv_heads,
              .head_dim = s.head_dim,
              .scale = forward.scale};
  }

  static int64_t n_pages(int n) { return (n + kPageTokens - 1) / kPageTokens; }
  static size_t bytes(const KernelShapes& s, int n) {
    return std::max(
        attention_backward_workspace_bytes(n, s.n_heads / s.n_kv_heads, s.head_dim, max_threads()),
        attention_cpu_workspace_bytes({.max_seqs = 1,
                                       .max_rows = n,
                                       .max_tokens = n,
                                       .n_heads = s.n_heads,
                                       .n_kv_heads = s.n_kv_heads,
                                       .head_dim = s.head_dim,
                                       .threads = max_threads()}));
  }

  /// The first KV head and its queries against the reference.
  std::string mismatch() {
    params.dqkv = want.raw();
    attention_backward_ref(params, {0, 1});
    params.dqkv = dqkv.raw();
    const int64_t hq = params.n_heads, heads = hq + 2 * params.n_kv_heads, d = params.head_dim;
    const int64_t group = hq / params.n_kv_heads, rows = row_begin[1];
    // As the kernel's contract says, the largest being about 4.
    const double absolute =
        16 * std::sqrt(static_cast<double>(rows * group + d)) * 4 * spacing(DType::f32);
    for (int64_t i = 0; i < rows * heads * d; ++i) {
      const int64_t head = i / d % heads;
      if (head >= group && head != hq && head != hq + params.n_kv_heads) continue;
      const double a = dqkv.get(i), b = want.get(i);
      if (!(std::abs(a - b) <= spacing(params.act) * std::abs(b) + absolute))
        return fmt::format("row {}, head {} has {}, the reference gives {}", i / d / heads, head, a,
                           b);
    }
    return {};
  }
};

PreparedCase prepare_loss(int n_rows, int vocab, DType act) {
  const auto logits = OwnedTensor::random(DType::f32, {n_rows, vocab}, 0, 3.0f);
  const OwnedTensor got(act, {n_rows, vocab}), want(act, {n_rows, vocab});
  const OwnedTensor loss(DType::f32, {n_rows}), want_loss(DType::f32, {n_rows});
  std::vector<int32_t> targets(static_cast<size_t>(n_rows));
  for (size_t i = 0; i < targets.size(); ++i)
    targets[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(vocab));
  return {.run =
              [=] {
                ops::cross_entropy({.logits = logits,
                                    .dlogits = got,
                                    .loss = loss.as<float>(),
                                    .targets = targets.data()});
              },
          .mismatch =
              [=] {
                cross_entropy_ref({.logits = logits.as<float>(),
                                   .dlogits = want.raw(),
                                   .loss = want_loss.as<float>(),
                                   .targets = targets.data(),
                                   .scale = 1.0f,
                                   .n_rows = n_rows,
                                   .vocab = vocab,
                                   .act = act},
                                  {0, n_rows});
                const double sums = (8 + vocab / 16.0) * spacing(DType::f32);
                const std::string text = find_mismatch(got, want, spacing(act) + sums, 0x1p-126);
                return text.empty() ? find_mismatch(loss, want_loss, sums, sums) : text;
              }};
}

PreparedCase prepare_adamw() {
  constexpr ops::AdamW kBy{.learning_rate = 1e-3f};
  const auto gradient = OwnedTensor::random(DType::f32, {kTrained}, 0);
  struct State {
    OwnedTensor w = OwnedTensor::random(DType::f32, {kTrained}, 1),
                m = OwnedTensor::random(DType::f32, {kTrained}, 2),
                v = OwnedTensor(DType::f32, {kTrained});
    State() {
      for (int64_t i = 0; i < kTrained; ++i) v.as<float>()[i] = m.get(i) * m.get(i);
    }
    std::span<float> of(const OwnedTensor& t) const {
      return {t.as<float>(), static_cast<size_t>(kTrained)};
    }
  };
  const State s, want;
  return {.run =
              [=] {
                ops::adamw({.weights = s.of(s.w),
                            .first = s.of(s.m),
                            .second = s.of(s.v),
                            .gradient = s.of(gradient),
                            .base = {}},
                           kBy, 1, 1.0f);
              },
          .mismatch =
              [=] {
                adamw_ref({.weights = want.w.as<float>(),
                           .first = want.m.as<float>(),
                           .second = want.v.as<float>(),
                           .gradient = gradient.as<float>(),
                           .n = kTrained,
                           .by = {1.0f, kBy.learning_rate, kBy.beta1, kBy.beta2, kBy.epsilon, 0,
                                  1 / (1 - kBy.beta1), 1 / (1 - kBy.beta2)}},
                          {0, (kTrained + kOptimBlock - 1) / kOptimBlock});
                // Moments are within 30.
                constexpr double kEps = 0x1p-23;
                std::string text = find_mismatch(s.w, want.w, kEps, 64e-3 * kEps);
                if (text.empty()) text = find_mismatch(s.m, want.m, 4 * kEps, 24 * kEps);
                return text.empty() ? find_mismatch(s.v, want.v, 4 * kEps, 0) : text;
              }};
}

}  // namespace

KernelCases backward_cases(const KernelShapes& s) {
  KernelCases cases;
  const auto act = static_cast<double>(dtype_bytes(s.act()));
  const auto add = [&](std::string name, std::string shape, double bytes, double flops,
                       std::function<PreparedCase()> prepare) {
    cases.push_back({.family = "backward",
                     .name = std::move(name),
                     .shape = std::move(shape),
                     .dtype = s.act(),
                     .work = {.bytes = bytes, .flops = flops},
                     .memory_bytes = static_cast<size_t>(2 * bytes),
                     .prepare = std::move(prepare)});
  };
  for (const int64_t rows : s.rows) {
    const int n = static_cast<int>(rows);
    const double dim = n * static_cast<double>(s.dim), ffn = n * static_cast<double>(s.ffn_dim);
    const double vocab = n * static_cast<double>(s.vocab);
    add("rms_norm_backward", fmt::format("{} x {}", n, s.dim), dim * (2 * act + 8), 0,
        [=] { return prepare_norm(n, s.dim, s.act()); });
    add("gate_mul_backward, after a copy", fmt::format("{} x 2 x {}", n, s.ffn_dim), 9 * ffn * act,
        0, [=] { return prepare_gate(n, s.ffn_dim, s.act()); });
    add("cross_entropy", fmt::format("{} x {}", n, s.vocab), vocab * (4 + act), 0,
        [=] { return prepare_loss(n, s.vocab, s.act()); });
  }
  const int n = std::min(kMostRows, static_cast<int>(s.context));
  const double pairs = n * (n + 1) / 2.0 * s.n_heads;
  add("attention_backward",
      fmt::format("{} rows, {}/{} x {}", n, s.n_heads, s.n_kv_heads, s.head_dim),
      act * n * s.head_dim * (4.0 * s.n_heads + 4.0 * s.n_kv_heads), 10.0 * s.head_dim * pairs,
      [=]() -> PreparedCase {
        const auto document = std::make_shared<Document>(s, n);
        return {.run = [=] { attention_backward_cpu(document->params, document->workspace.raw()); },
                .mismatch = [=] { return document->mismatch(); }};
      });
  add("adamw", std::to_string(kTrained), 28.0 * kTrained, 0, prepare_adamw);
  return cases;
}

}  // namespace tandem::bench
