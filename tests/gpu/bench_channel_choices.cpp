// Times the choice of FFN channels on a GPU, in graphs. Not a test; run it by hand.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/convert.h"
#include "gpu/bench_memory.h"
#include "kernels/cuda_table.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

constexpr int kCalls = 32;  // of a graph

void run(cuda::Queue& queue, int channels, int n_rows) {
  const size_t n = static_cast<size_t>(channels), rows = static_cast<size_t>(n_rows);
  const Memory x(rows * n * 2), scores(n * 4), ids(n * 4), count(64), sums(n * 4), scales(rows * 4),
      slot(64), row_begin(64), coarse_scores(n * 4);
  fill_random(queue, x, rows * n * 2);
  std::vector<float> zeros(n), random(n);
  PhiloxStream stream(3);
  for (float& r : random) {
    const double u = 2 * stream.uniform() - 1;
    r = static_cast<float>(u * u * u * u);
  }
  put(queue, sums, zeros);
  put(queue, slot, std::vector<int32_t>{0});
  put(queue, row_begin, std::vector<int32_t>{0, n_rows});
  put(queue, count, std::vector<float>(4));
  put(queue, scores, random);
  for (float& r : random) r = to_float(to_bf16(std::abs(r)));
  put(queue, coarse_scores, random);
  const ChannelSums to{static_cast<float*>(sums.at), static_cast<float*>(count.at) + 1, channels,
                       1};
  const auto* const slots = static_cast<const int32_t*>(slot.at);
  const auto* const begins = static_cast<const int32_t*>(row_begin.at);
  const double bytes = static_cast<double>(rows * n * 2);
  const ChooseChannelsParams choice{.ids = static_cast<int32_t*>(ids.at),
                                    .n = static_cast<int32_t*>(count.at),
                                    .scores = static_cast<const float*>(scores.at),
                                    .id_stride = channels,
                                    .n_stride = 1,
                                    .score_stride = channels,
                                    .n_lists = 1,
                                    .n_channels = channels,
                                    .keep = channels / 2,
                                    .threshold = 0.1f};
  const auto report = [&](const char* name, double us, double moved) {
    fmt::print(
        "{{\"case\": \"{}\", \"channels\": {}, \"rows\": {}, \"microseconds\": {:.2f}, "
        "\"tb_per_s\": {:.4f}}}\n",
        name, channels, n_rows, us, moved / us * 1e-6);
  };
  const auto stream_of = [&] { return queue.stream(); };
  report(
      "choose_channels",
      microseconds(queue, kCalls, [&](int) { cuda_table().choose_channels(choice, stream_of()); }),
      4.0 * channels);
  ChooseChannelsParams coarse = choice;
  coarse.scores = static_cast<const float*>(coarse_scores.at);
  report(
      "choose_channels, magnitudes of bf16",
      microseconds(queue, kCalls, [&](int) { cuda_table().choose_channels(coarse, stream_of()); }),
      4.0 * channels);
  report(
      "channels_above",
      microseconds(queue, kCalls, [&](int) { cuda_table().channels_above(choice, stream_of()); }),
      4.0 * channels);
  report("square_scales",
         microseconds(queue, kCalls,
                      [&](int) {
                        cuda_table().square_scales({.scale = static_cast<float*>(scales.at),
                                                    .x = x.at,
                                                    .row_stride = channels,
                                                    .n_rows = n_rows,
                                                    .n_channels = channels,
                                                    .x_type = DType::bf16},
                                                   stream_of());
                      }),
         bytes);
  report("add_squares",
         microseconds(queue, kCalls,
                      [&](int) {
                        cuda_table().add_squares({.to = to,
                                                  .x = x.at,
                                                  .scale = static_cast<const float*>(scales.at),
                                                  .row_stride = channels,
                                                  .slot = slots,
                                                  .row_begin = begins,
                                                  .first_row = 0,
                                                  .last_row = n_rows,
                                                  .n_seqs = 1,
                                                  .n_channels = channels,
                                                  .blend = 0,
                                                  .x_type = DType::bf16},
                                                 stream_of());
                      }),
         bytes);
  if (n_rows > 16) return;
  report("score_channels",
         microseconds(queue, kCalls,
                      [&](int) {
                        cuda_table().score_channels({.scores = static_cast<float*>(scores.at),
                                                     .gate = x.at,
                                                     .weights = to,
                                                     .norms = nullptr,
                                                     .slot = slots,
                                                     .row_begin = begins,
                                                     .n_seqs = 1,
                                                     .n_channels = channels,
                                                     .largest = false,
                                                     .type = DType::bf16},
                                                    stream_of());
                      }),
         bytes);
}

}  // namespace

int main() {
  cuda::Queue queue(0);
  for (const int channels : {8192, 14336, 28672})
    for (const int n_rows : {1, 16, 2048}) run(queue, channels, n_rows);
  return 0;
}
