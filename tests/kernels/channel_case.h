#pragma once
// Rows of a step and scores of channels, for tests on the CPU and on GPUs.
#include "kernels/channels/add_squares.h"
#include "kernels/channels/choose_channels.h"
#include "kernels/channels/score_channels.h"
#include "kernels/variants.h"

namespace tandem::test {

enum class ScoreKind : uint8_t { random, positive, ties, equal, zeros, wide, infinite };
inline constexpr ScoreKind kScoreKinds[] = {
    ScoreKind::random, ScoreKind::positive, ScoreKind::ties,    ScoreKind::equal,
    ScoreKind::zeros,  ScoreKind::wide,     ScoreKind::infinite};

inline std::vector<float> channel_scores(ScoreKind kind, int n, uint32_t seed) {
  PhiloxStream stream(seed, static_cast<uint32_t>(kind));
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) {
    const float uniform = random_float(stream, 1.0f);
    x[i] = uniform * uniform * uniform;
    if (kind == ScoreKind::positive) x[i] = std::abs(to_float(to_bf16(uniform)));
    if (kind == ScoreKind::ties) x[i] = std::floor(6 * uniform);
    if (kind == ScoreKind::equal) x[i] = 2.5f;
    if (kind == ScoreKind::zeros) x[i] = uniform > 0.3f ? 0.0f : uniform < -0.3f ? -0.0f : uniform;
    if (kind == ScoreKind::wide) x[i] = std::ldexp(uniform, static_cast<int>(i % 250) - 125);
    if (kind == ScoreKind::infinite && i % 3 != 0) x[i] = i % 3 == 1 ? INFINITY : -INFINITY;
  }
  return x;
}

/// A step of rows of some sequences, one without any, and what their slots have summed.
struct ChannelStep {
  static constexpr int kSlots = 5;
  int n_channels;
  int64_t columns;  // of x: two more than the channels, which begin at the second
  std::vector<int32_t> slot = {3, 0, 4}, row_begin;
  ActBuffer x;
  std::vector<float> sums, rows;  // [kSlots, n_channels], [kSlots]

  ChannelStep(DType type, int channels, int first_rows, int last_rows, uint32_t seed)
      : n_channels(channels),
        columns(channels + 2),
        row_begin{0, first_rows, first_rows, first_rows + last_rows},
        x(type, static_cast<size_t>(n_rows() * columns)),
        sums(static_cast<size_t>(kSlots * channels)),
        rows{0, 7, 3, 20, 0} {
    PhiloxStream stream(seed);
    fill(x, stream, 3.0f);
    if (n_rows() > 2)
      for (int64_t c = 0; c < columns; ++c) x.set(static_cast<size_t>(2 * columns + c), 0);
    for (float& s : sums) s = std::abs(random_float(stream, 5.0f));
  }
  int64_t n_rows() const { return row_begin.back(); }

  /// With pointers of the caller, at row 0 column 1 of x.
  AddSquaresParams squares(float* to, float* counts, const void* channel_0, const float* scale,
                           float blend) const {
    return {.to = {to, counts, n_channels, 1},
            .x = channel_0,
            .scale = scale,
            .row_stride = columns,
            .slot = slot.data(),
            .row_begin = row_begin.data(),
            .first_row = 0,
            .last_row = static_cast<int>(n_rows()),
            .n_seqs = 3,
            .n_channels = n_channels,
            .blend = blend,
            .x_type = x.type};
  }
  SquareScalesParams scales(float* to, const void* channel_0) const {
    return {.scale = to,
            .x = channel_0,
            .row_stride = columns,
            .n_rows = static_cast<int>(n_rows()),
            .n_channels = n_channels,
            .x_type = x.type};
  }
  const void* channel_0() { return static_cast<char*>(x.data()) + dtype_bytes(x.type); }
};

}  // namespace tandem::test
