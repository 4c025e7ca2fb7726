// FFN channels: squares of a prompt's rows, scores of a step's gates, and the best of them.
#include <algorithm>

#include "bench/kernel_data.h"
#include "kernels/channels/choose_channels.h"
#include "ops/channels.h"

namespace tandem::bench {
namespace {

/// The arrays of a step of one sequence.
struct OneSequence {
  std::vector<int32_t> slot{0}, row_begin;
  explicit OneSequence(int n_rows) : row_begin{0, n_rows} {}
  ops::StepArrays arrays() const {
    return {.n_seqs = 1,
            .n_rows = row_begin[1],
            .max_rows_a_seq = row_begin[1],
            .slot = slot.data(),
            .row_begin = row_begin.data()};
  }
};

KernelCase channel_case(std::string name, int n_rows, int n_channels, DType type, double bytes,
                        std::function<PreparedCase()> prepare) {
  return {.family = "ffn",
          .name = std::move(name),
          .shape = fmt::format("{} x {}", n_rows, n_channels),
          .dtype = type,
          .work = {.bytes = bytes},
          .memory_bytes = static_cast<size_t>(bytes) + 16 * static_cast<size_t>(n_channels),
          .prepare = std::move(prepare)};
}

PreparedCase prepare_squares(int n_rows, int n, DType type) {
  const auto x = OwnedTensor::random(type, {n_rows, n}, 0);
  const OwnedTensor got(DType::f32, {n}), want(DType::f32, {n});
  const OwnedTensor scales(DType::f32, {std::max(n_rows, ops::kScaledRows)});
  const auto step = std::make_shared<OneSequence>(n_rows);
  const auto rows = std::make_shared<float>(0.0f);
  return {
      .run =
          [=] {
            std::fill_n(got.as<float>(), n, 0.0f);
            ops::add_squares(
                {.to = {got.as<float>(), rows.get(), n, 1}, .x = x, .scales = scales.as<float>()},
                step->arrays(), n);
          },
      .mismatch =
          [=] {
            std::fill_n(want.as<float>(), n, 0.0f);
            square_scales_ref({.scale = scales.as<float>(),
                               .x = x.raw(),
                               .row_stride = n,
                               .n_rows = n_rows,
                               .n_channels = n,
                               .x_type = type},
                              {0, n_rows});
            add_squares_ref({.to = {want.as<float>(), rows.get(), n, 1},
                             .x = x.raw(),
                             .scale = scales.as<float>(),
                             .row_stride = n,
                             .slot = step->slot.data(),
                             .row_begin = step->row_begin.data(),
                             .first_row = 0,
                             .last_row = n_rows,
                             .n_seqs = 1,
                             .n_channels = n,
                             .blend = 0,
                             .x_type = type},
                            {0, n});
            return find_mismatch(got, want, (n_rows + 64) * 0x1p-23, 0);
          }};
}

PreparedCase prepare_scores(int n_rows, int n, DType type) {
  const auto gate = OwnedTensor::random(type, {n_rows, n}, 0);
  const OwnedTensor got(DType::f32, {n}), want(DType::f32, {n});
  const auto step = std::make_shared<OneSequence>(n_rows);
  return {
      .run =
          [=] { ops::score_channels({.scores = got.as<float>(), .gate = gate}, step->arrays()); },
      .mismatch =
          [=] {
            score_channels_ref({.scores = want.as<float>(),
                                .gate = gate.raw(),
                                .weights = {},
                                .norms = nullptr,
                                .slot = step->slot.data(),
                                .row_begin = step->row_begin.data(),
                                .n_seqs = 1,
                                .n_channels = n,
                                .largest = false,
                                .type = type},
                               {0, n});
            return find_mismatch(got, want, (n_rows + 4) * 0x1p-23, 0);
          }};
}

PreparedCase prepare_choice(int n) {
  const auto scores = OwnedTensor::random(DType::f32, {n}, 0);
  const int keep = std::max(1, n / 2);
  using Ids = std::vector<int32_t>;
  const auto ids = std::make_shared<Ids>(static_cast<size_t>(keep) + 1);  // and their number
  return {.run =
              [=] {
                ops::choose_channels({.ids = ids->data(),
                                      .n = ids->data() + keep,
                                      .scores = scores.as<float>(),
                                      .n_channels = n,
                                      .keep = keep});
              },
          .mismatch = [=]() -> std::string {
            Ids want(ids->size());
            choose_channels_ref({.ids = want.data(),
                                 .n = want.data() + keep,
                                 .scores = scores.as<float>(),
                                 .id_stride = 0,
                                 .n_stride = 0,
                                 .score_stride = 0,
                                 .n_lists = 1,
                                 .n_channels = n,
                                 .keep = keep,
                                 .threshold = 0},
                                {0, 1});
            return *ids == want ? "" : "other ids than the reference";
          }};
}

}  // namespace

KernelCases channel_choice_cases(const KernelShapes& s) {
  const int n = s.ffn_dim;
  const DType act = s.act();
  const double row_bytes = static_cast<double>(n) * static_cast<double>(dtype_bytes(act));
  KernelCases cases;
  for (const int64_t rows : s.rows) {
    const auto r = static_cast<int>(rows);
    cases.push_back(channel_case("add_squares", r, n, act, r * row_bytes,
                                 [=] { return prepare_squares(r, n, act); }));
    cases.push_back(channel_case("score_channels", r, n, act, r * row_bytes,
                                 [=] { return prepare_scores(r, n, act); }));
  }
  cases.push_back(channel_case("choose_channels", 1, n, DType::f32, 4.0 * n,
                               [=] { return prepare_choice(n); }));
  return cases;
}

}  // namespace tandem::bench
