// embed, norm, rope, gate: a few operations an element, so what they reach is a share of the read
// rate.
#include <cmath>
#include <numeric>

#include "bench/kernel_data.h"
#include "kernels/embed/embed.h"
#include "kernels/ffn/gate_mul.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "ops/elementwise.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

struct Rows {
  int n;
  std::string shape;  // of one
  DType dtype;
  double bytes, flops;  // of one
};

/// A case of rows, with its bytes an element counted by the caller.
KernelCase row_case(std::string family, std::string name, const Rows& rows,
                    std::function<PreparedCase()> prepare) {
  return {.family = std::move(family),
          .name = std::move(name),
          .shape = fmt::format("{} x {}", rows.n, rows.shape),
          .dtype = rows.dtype,
          .work = {.bytes = rows.n * rows.bytes, .flops = rows.n * rows.flops},
          .memory_bytes = static_cast<size_t>(2 * rows.n * rows.bytes),
          .prepare = std::move(prepare)};
}

PreparedCase prepare_embed(int n_rows, int dim, int vocab, DType act) {
  const auto table = OwnedTensor::random(act, {vocab, dim}, 0, 0.02f);
  const OwnedTensor got(DType::f32, {n_rows, dim}), want(DType::f32, {n_rows, dim});
  std::vector<int32_t> ids(static_cast<size_t>(n_rows));
  // Scattered like text: a stride that shares no factor with the vocabulary's size.
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(vocab));
  return {.run = [=] { ops::embed(got.as<float>(), table.raw(), act, ids, dim); },
          .mismatch =
              [=] {
                embed_ref({.out = want.as<float>(),
                           .table = table.raw(),
                           .ids = ids.data(),
                           .n_rows = n_rows,
                           .dim = dim,
                           .from = act},
                          {0, n_rows});
                return find_mismatch(got, want, 0, 0);
              }};
}

PreparedCase prepare_norm(int n_rows, int dim, DType act) {
  const auto x = OwnedTensor::random(DType::f32, {n_rows, dim}, 0);
  const auto weight = OwnedTensor::random(DType::f32, {dim}, 1);
  const OwnedTensor got(act, {n_rows, dim}), want(act, {n_rows, dim});
  constexpr float kEps = 1e-5f;
  return {.run = [=] { ops::rms_norm(got, x, weight.as<float>(), kEps); },
          .mismatch =
              [=] {
                rms_norm_ref({.out = want.raw(),
                              .x = x.as<float>(),
                              .weight = weight.as<float>(),
                              .n_rows = n_rows,
                              .dim = dim,
                              .eps = kEps,
                              .act = act},
                             {0, n_rows});
                const double relative = spacing(act) + (dim / 16.0 + 4) * spacing(DType::f32);
                return find_mismatch(got, want, relative, 0x1p-126);
              }};
}

PreparedCase prepare_gate(int n_rows, int width, DType act) {
  const auto gate_up = OwnedTensor::random(act, {n_rows, 2 * width}, 0, 3.0f);
  const OwnedTensor got(act, {n_rows, width}), want(act, {n_rows, width});
  return {.run = [=] { ops::gate_mul(got, gate_up, Gate::silu); },
          .mismatch =
              [=] {
                gate_mul_ref({.out = want.raw(),
                              .gate_up = gate_up.raw(),
                              .n_rows = n_rows,
                              .ffn_dim = width,
                              .act = act,
                              .gate = Gate::silu},
                             {0, n_rows});
                return find_mismatch(got, want, spacing(act) + 4 * spacing(DType::f32), 0x1p-126);
              }};
}

/// normed   with norms of heads
PreparedCase prepare_rope(const KernelShapes& s, int n_rows, bool normed) {
  const DType act = s.act();
  const int d = s.head_dim, hq = s.n_heads, hkv = s.n_kv_heads;
  const int pages = (n_rows + kPageTokens - 1) / kPageTokens;
  const auto qkv = OwnedTensor::random(act, {n_rows, (hq + 2 * hkv) * d}, 0);
  const auto norm = OwnedTensor::random(DType::f32, {d}, 2);
  const ops::HeadNorms norms{normed ? norm.as<float>() : nullptr,
                             normed ? norm.as<float>() : nullptr, 1e-6f};
  const OwnedTensor q(act, {n_rows, hq, d}), q0(act, {n_rows, hq, d});
  const OwnedTensor k(act, {pages, hkv, kPageTokens, d}), v(act, {pages, hkv, kPageTokens, d});
  const OwnedTensor k0(act, {pages, hkv, kPageTokens, d}), v0(act, {pages, hkv, kPageTokens, d});
  for (const OwnedTensor& pool : {k, v, k0, v0})
    ops::fill_random(pool.raw(), act, {.tensor = 1, .n = pool.view().elements()});
  MemoryPlan plan;
  ops::RopeTable::plan(n_rows, d, plan);
  const auto arena = std::make_shared<Arena>(plan);
  const ops::RopeTable table({}, n_rows, d, *arena);
  std::vector<int32_t> pos(static_cast<size_t>(n_rows)), page = pos, slot = pos;
  std::iota(pos.begin(), pos.end(), 0);
  for (size_t i = 0; i < pos.size(); ++i) {
    page[i] = pos[i] / kPageTokens;
    slot[i] = pos[i] % kPageTokens;
  }
  return {.run =
              [=, keep = arena] {
                ops::rope_kv({.q = q,
                              .k_pool = k,
                              .v_pool = v,
                              .qkv = qkv,
                              .rope = table,
                              .step = {.n_rows = n_rows,
                                       .pos = pos.data(),
                                       .row_page = page.data(),
                                       .row_in_page = slot.data()},
                              .norms = norms});
              },
          .mismatch =
              [=, keep = arena] {
                rope_kv_ref({.q = q0.raw(),
                             .k_pool = k0.raw(),
                             .v_pool = v0.raw(),
                             .qkv = qkv.raw(),
                             .cos_table = table.cos(),
                             .sin_table = table.sin(),
                             .pos = pos.data(),
                             .slot_page = page.data(),
                             .slot_in_page = slot.data(),
                             .n_rows = n_rows,
                             .n_heads = hq,
                             .n_kv_heads = hkv,
                             .head_dim = d,
                             .act = act,
                             .q_norm = norms.q,
                             .k_norm = norms.k,
                             .norm_eps = norms.eps},
                            {0, n_rows});
                // |x| <= sqrt 3; normalised, times a weight, |x| <= 3 over a root mean square of 1,
                // which two heads' worth of numbers keep above 1/2.
                const double absolute = normed ? (6 + d / 16.0) * spacing(DType::f32) * 2 * 6
                                               : 2 * spacing(DType::f32) * 2 * std::sqrt(3.0);
                std::string text = find_mismatch(q, q0, spacing(act), absolute);
                if (text.empty()) text = find_mismatch(k, k0, spacing(act), absolute);
                return text.empty() ? find_mismatch(v, v0, 0, 0) : text;
              }};
}

}  // namespace

KernelCases embed_cases(const KernelShapes& s) {
  KernelCases cases;
  const auto act_bytes = static_cast<double>(dtype_bytes(s.act()));
  for (const int64_t rows : s.rows) {
    const int n = static_cast<int>(rows);
    cases.push_back(row_case("embed", "embed",
                             {n, std::to_string(s.dim), s.act(), s.dim * (act_bytes + 4), 0},
                             [=] { return prepare_embed(n, s.dim, s.vocab, s.act()); }));
    cases.back().memory_bytes += static_cast<size_t>(s.vocab * act_bytes * s.dim);
  }
  return cases;
}

KernelCases norm_cases(const KernelShapes& s) {
  KernelCases cases;
  const auto act_bytes = static_cast<double>(dtype_bytes(s.act()));
  for (const int64_t rows : s.rows) {
    const int n = static_cast<int>(rows);
    cases.push_back(
        row_case("norm", "rms_norm",
                 {n, std::to_string(s.dim), s.act(), s.dim * (act_bytes + 4), 4.0 * s.dim},
                 [=] { return prepare_norm(n, s.dim, s.act()); }));
  }
  return cases;
}

KernelCases gate_cases(const KernelShapes& s) {
  KernelCases cases;
  const auto act_bytes = static_cast<double>(dtype_bytes(s.act()));
  for (const int64_t rows : s.rows) {
    const int n = static_cast<int>(rows);
    cases.push_back(
        row_case("gate", "gate_mul",
                 {n, fmt::format("2 x {}", s.ffn_dim), s.act(), 3.0 * s.ffn_dim * act_bytes, 0},
                 [=] { return prepare_gate(n, s.ffn_dim, s.act()); }));
  }
  return cases;
}

KernelCases rope_cases(const KernelShapes& s) {
  KernelCases cases;
  const double width = (s.n_heads + 2.0 * s.n_kv_heads) * s.head_dim;
  const auto act_bytes = static_cast<double>(dtype_bytes(s.act()));
  for (const bool normed : {false, true})
    for (const int64_t rows : s.rows) {
      const int n = static_cast<int>(rows);
      cases.push_back(
          row_case("rope", normed ? "rope_kv, heads normalised" : "rope_kv",
                   {n, fmt::format("({} + 2 x {}) x {}", s.n_heads, s.n_kv_heads, s.head_dim),
                    s.act(), 2 * width * act_bytes, 0},
                   [=] { return prepare_rope(s, n, normed); }));
    }
  return cases;
}

}  // namespace tandem::bench
