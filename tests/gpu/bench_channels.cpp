// Times products of listed channels on a GPU: bytes of listed weights read a second, one JSON line
// a setting. Not a test; run it by hand: bench_gpu_channels [D F keep rows]
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <memory>

#include "gpu/bench_memory.h"
#include "kernels/cuda_table.h"
#include "tensor/gpu_isa.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

struct Setting {
  int dim = 4096, channels = 14336;
  double keep = .5;
  int rows = 1;
};

constexpr int kLayers = 8;  // in turn: together far larger than a GPU's cache

void time_setting(cuda::Queue& queue, const Setting& s) {
  const auto dim = static_cast<size_t>(s.dim), channels = static_cast<size_t>(s.channels),
             rows = static_cast<size_t>(s.rows);
  std::vector<std::unique_ptr<Memory>> gate_up, down;
  for (int i = 0; i < kLayers; ++i) {
    gate_up.push_back(std::make_unique<Memory>(2 * channels * dim * 2));
    down.push_back(std::make_unique<Memory>(channels * dim * 2));
    fill_random(queue, *gate_up.back(), 2 * channels * dim * 2);
    fill_random(queue, *down.back(), channels * dim * 2);
  }
  std::vector<int32_t> list;
  PhiloxStream draw(3);
  for (int j = 0; j < s.channels; ++j)
    if (draw.uniform() < s.keep) list.push_back(j);
  const Memory ids(channels * 4), n(4), x(rows * dim * 2), gate(rows * channels * 2),
      y(rows * channels * 2), out(rows * dim * 4);
  put(queue, ids, list);
  put(queue, n, std::vector<int32_t>{static_cast<int32_t>(list.size())});
  fill_random(queue, x, rows * dim * 2);
  fill_random(queue, gate, rows * channels * 2);
  fill_random(queue, y, rows * channels * 2);
  put(queue, out, std::vector<float>(rows * dim));

  const auto gates = [&](int layer, ChannelOutput output) {
    const bool all = output == ChannelOutput::gate;
    cuda_table().gate_up_channels({.y = y.at,
                                   .x = x.at,
                                   .w = gate_up[static_cast<size_t>(layer)]->at,
                                   .bias = nullptr,
                                   .gates = gate.at,
                                   .ids = all ? nullptr : static_cast<const int32_t*>(ids.at),
                                   .n = all ? nullptr : static_cast<const int32_t*>(n.at),
                                   .y_stride = s.channels,
                                   .rows = s.rows,
                                   .in = s.dim,
                                   .n_channels = s.channels,
                                   .most = s.channels,
                                   .type = DType::bf16,
                                   .output = output,
                                   .gate = Gate::silu,
                                   .settled = output == ChannelOutput::gated},
                                  queue.stream());
    cuda::launched("gate_up_channels", queue.stream());
  };
  const auto downs = [&](int layer, bool all) {
    cuda_table().down_channels({.out = static_cast<float*>(out.at),
                                .y = y.at,
                                .w = down[static_cast<size_t>(layer)]->at,
                                .bias = nullptr,
                                .ids = all ? nullptr : static_cast<const int32_t*>(ids.at),
                                .n = all ? nullptr : static_cast<const int32_t*>(n.at),
                                .y_stride = s.channels,
                                .rows = s.rows,
                                .width = s.dim,
                                .n_channels = s.channels,
                                .most = s.channels,
                                .type = DType::bf16},
                               queue.stream());
    cuda::launched("down_channels", queue.stream());
  };
  const auto report = [&](const char* name, double weight_rows,
                          const std::function<void(int layer)>& run) {
    const double us = microseconds(queue, 4 * kLayers, [&](int i) { run(i % kLayers); });
    fmt::print(
        "{{\"case\": \"{}\", \"dim\": {}, \"channels\": {}, \"listed\": {}, \"rows\": {}, "
        "\"microseconds\": {:.2f}, \"tb_per_s\": {:.3f}}}\n",
        name, s.dim, s.channels, list.size(), s.rows, us,
        weight_rows * static_cast<double>(dim) * 2 / us * 1e-6);
  };
  const auto listed = static_cast<double>(list.size());
  report("gated_channels", 2 * listed, [&](int l) { gates(l, ChannelOutput::gated); });
  report("up_channels", listed, [&](int l) { gates(l, ChannelOutput::up); });
  report("gates", s.channels, [&](int l) { gates(l, ChannelOutput::gate); });
  report("down_channels", listed, [&](int l) { downs(l, false); });
  report("down, all channels", s.channels, [&](int l) { downs(l, true); });
  report("gated_channels, down_channels", 3 * listed, [&](int l) {
    gates(l, ChannelOutput::gated);
    downs(l, false);
  });
  report("gates, up_channels, down_channels", s.channels + 2 * listed, [&](int l) {
    gates(l, ChannelOutput::gate);
    gates(l, ChannelOutput::up);
    downs(l, false);
  });
}

}  // namespace

int main(int argc, char** argv) {
  cuda::Queue queue(0);
  if (argc == 5) {
    time_setting(queue,
                 {std::atoi(argv[1]), std::atoi(argv[2]), std::atof(argv[3]), std::atoi(argv[4])});
    return 0;
  }
  for (const int rows : {1, 2, 4, 8, 16}) time_setting(queue, {.rows = rows});
}
