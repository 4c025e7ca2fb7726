// Products of listed channels of an FFN: a random share of them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "bench/kernel_data.h"
#include "kernels/channels/channel_products.h"
#include "ops/channels.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

struct Matrix {
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;
};
using Matrices = std::vector<std::shared_ptr<Matrix>>;

/// Copies that differ, random tensors 0, 1, ...
Matrices make_matrices(const ops::PackedWeights::Spec& spec, int copies) {
  Matrices all;
  for (int id = 0; id < copies; ++id) {
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    const auto m = std::make_shared<Matrix>();
    m->arena = std::make_unique<Arena>(plan);
    std::vector<std::byte> memory(ops::PackedWeights::staging_bytes(spec));
    ops::Staging staging({}, memory.data(), memory.size());
    m->packed.load(
        spec, *m->arena,
        [&](int64_t begin, int64_t end, void* to) {
          ops::fill_random(to, spec.input,
                           {.tensor = static_cast<uint32_t>(id),
                            .first = begin * spec.in,
                            .n = (end - begin) * spec.in,
                            .stddev = 0.02f});
        },
        {}, staging);
    all.push_back(m);
  }
  return all;
}

struct List {
  std::vector<int32_t> ids;
  int32_t n = 0;

  ops::ChannelList view() const { return {ids.data(), &n, n}; }
};

/// Each channel by chance.
std::shared_ptr<const List> make_list(int channels, double keep) {
  const auto list = std::make_shared<List>();
  PhiloxStream draw(11);
  for (int j = 0; j < channels; ++j)
    if (draw.uniform() < keep) list->ids.push_back(j);
  list->n = static_cast<int32_t>(list->ids.size());
  return list;
}

// Of results near 1, the sums' rounding; and both sides' to their type.
constexpr double kAbsolute = 1e-4;
double relative(DType dtype) { return 2 * spacing(dtype); }

PreparedCase prepare_gate_up(const KernelShapes& s, int rows, ChannelOutput output,
                             const std::shared_ptr<const List>& list, int copies) {
  const DType dtype = s.act();
  const Matrices all = make_matrices({.name = "weights/bench",
                                      .out = 2 * int64_t{s.ffn_dim},
                                      .in = s.dim,
                                      .stored = dtype,
                                      .trainable = true},
                                     copies);
  const auto x = OwnedTensor::random(dtype, {rows, s.dim}, 1000);
  const auto gate = OwnedTensor::random(dtype, {rows, s.ffn_dim}, 1001);
  const OwnedTensor y(dtype, {rows, list->n}), want(dtype, {rows, list->n});
  const auto turn = std::make_shared<size_t>(0);
  PreparedCase prepared;
  prepared.run = [=] {
    const ops::PackedWeights& w = all[*turn]->packed;
    if (output == ChannelOutput::up)
      ops::up_channels(y, gate, x, w, list->view());
    else
      ops::gated_channels(y, x, w, Gate::silu, list->view());
    *turn = (*turn + 1) % all.size();
  };
  prepared.mismatch = [=] {
    const size_t last = (*turn + all.size() - 1) % all.size();
    gate_up_channels_ref({.y = want.raw(),
                          .x = x.raw(),
                          .w = ops::trainable_rows(all[last]->packed),
                          .bias = nullptr,
                          .gates = gate.raw(),
                          .ids = list->ids.data(),
                          .n = &list->n,
                          .y_stride = list->n,
                          .rows = rows,
                          .in = s.dim,
                          .n_channels = s.ffn_dim,
                          .most = list->n,
                          .type = dtype,
                          .output = output,
                          .gate = Gate::silu},
                         {0, list->n});
    return find_mismatch(y, want, relative(dtype), kAbsolute);
  };
  return prepared;
}

PreparedCase prepare_down(const KernelShapes& s, int rows, const std::shared_ptr<const List>& list,
                          int copies) {
  const DType dtype = s.act();
  const Matrices all = make_matrices(
      {.name = "weights/bench", .out = s.dim, .in = s.ffn_dim, .stored = dtype, .by_input = true},
      copies);
  const auto y = OwnedTensor::random(dtype, {rows, list->n}, 1000);
  const OwnedTensor out(DType::f32, {rows, s.dim}), want(DType::f32, {rows, s.dim});
  const auto clear = [](const OwnedTensor& t) {
    std::fill_n(t.as<float>(), t.view().elements(), 0.0f);
  };
  clear(out);
  const auto turn = std::make_shared<size_t>(0);
  PreparedCase prepared;
  prepared.run = [=] {
    ops::down_channels(out, y, all[*turn]->packed, list->view());
    *turn = (*turn + 1) % all.size();
  };
  prepared.mismatch = [=] {
    clear(want);
    const size_t last = (*turn + all.size() - 1) % all.size();
    down_channels_ref({.out = want.as<float>(),
                       .y = y.raw(),
                       .w = all[last]->packed.input_rows(),
                       .bias = nullptr,
                       .ids = list->ids.data(),
                       .n = &list->n,
                       .y_stride = list->n,
                       .rows = rows,
                       .width = s.dim,
                       .n_channels = s.ffn_dim,
                       .most = list->n,
                       .type = dtype},
                      {0, (s.dim + kDownColumns - 1) / kDownColumns});
    return find_mismatch(out, want, relative(DType::f32), kAbsolute);
  };
  return prepared;
}

}  // namespace

KernelCases ffn_cases(const KernelShapes& s) {
  const DType dtype = s.act();
  const auto list = make_list(s.ffn_dim, s.keep);
  const auto each = static_cast<double>(dtype_bytes(dtype));
  KernelCases cases;
  for (const int64_t n_rows : s.rows) {
    if (n_rows > kListedRows) continue;
    const int rows = static_cast<int>(n_rows);
    // A product reads `parts` rows of each listed channel, of matrices of `of` rows a channel.
    const auto add = [&](const char* name, int parts, int of, auto prepare) {
      const size_t matrix = static_cast<size_t>(of) * static_cast<size_t>(s.ffn_dim) *
                            static_cast<size_t>(s.dim) * dtype_bytes(dtype);
      const double listed = static_cast<double>(list->n) * parts;
      const double moved = static_cast<double>(rows) * (s.dim + list->n) * each;
      const double read = listed * s.dim * each;
      const int copies = rotating_copies(static_cast<size_t>(read));
      cases.push_back(
          {.family = "ffn",
           .name = name,
           .shape = fmt::format("{} x {}, {} of {} channels", rows, s.dim, list->n, s.ffn_dim),
           .dtype = dtype,
           .work = {.bytes = read + moved, .flops = 2.0 * rows * listed * s.dim},
           // Packed for products of all channels, too.
           .memory_bytes = 2 * matrix * static_cast<size_t>(copies) + static_cast<size_t>(moved),
           .rotates = copies > 1,
           .prepare = [=] { return prepare(rows, copies); }});
    };
    for (const ChannelOutput output : {ChannelOutput::gated, ChannelOutput::up}) {
      const bool both = output == ChannelOutput::gated;
      add(both ? "gated_channels" : "up_channels", both ? 2 : 1, 2,
          [=](int n, int copies) { return prepare_gate_up(s, n, output, list, copies); });
    }
    add("down_channels", 1, 1, [=](int n, int copies) { return prepare_down(s, n, list, copies); });
  }
  for (KernelCase& choice : channel_choice_cases(s)) cases.push_back(std::move(choice));
  return cases;
}

}  // namespace tandem::bench
