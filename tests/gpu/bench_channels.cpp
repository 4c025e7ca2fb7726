// Times products of listed channels on a GPU, of numbers and of codes: bytes of listed weights read
// a second, one JSON line a setting. Not a test; run it by hand: bench_gpu_channels [D F keep rows]
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <memory>

#include "gpu/bench_memory.h"
#include "tensor/gpu_isa.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

struct Setting {
  int dim = 4096, channels = 14336;
  double keep = .5;
  int rows = 1;
  CodeTiles format = {};  // a group of 0: numbers
  const char* name = "bf16";
};

constexpr int kLayers = 8;  // in turn: together far larger than a GPU's cache

void time_setting(cuda::Queue& queue, const Setting& s, double read_rate) {
  const auto dim = static_cast<size_t>(s.dim), channels = static_cast<size_t>(s.channels),
             rows = static_cast<size_t>(s.rows);
  const bool coded = s.format.group > 0;
  CodeTiles of_upper = s.format, of_down = s.format;
  of_upper.out = 2 * s.channels, of_upper.in = s.dim, of_upper.paired = true;
  of_down.out = s.dim, of_down.in = s.channels, of_down.by_input = true;
  const auto bytes_of = [&](const CodeTiles& t, size_t numbers) {
    return coded ? static_cast<size_t>(t.down() * t.row_bytes()) : numbers * 2;
  };
  const size_t upper_bytes = bytes_of(of_upper, 2 * channels * dim),
               down_bytes = bytes_of(of_down, channels * dim);
  std::vector<std::unique_ptr<Memory>> gate_up, down;
  for (int i = 0; i < kLayers; ++i) {
    gate_up.push_back(std::make_unique<Memory>(upper_bytes));
    down.push_back(std::make_unique<Memory>(down_bytes));
    fill_random(queue, *gate_up.back(), upper_bytes);
    fill_random(queue, *down.back(), down_bytes);
  }
  const auto tiles_at = [&](CodeTiles t, const std::unique_ptr<Memory>& memory) {
    if (coded) t.data = static_cast<const uint8_t*>(memory->at);
    return t;
  };
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
    cuda_table().gate_up_channels(
        {.y = y.at,
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
         .settled = output == ChannelOutput::gated,
         .codes = tiles_at(of_upper, gate_up[static_cast<size_t>(layer)])},
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
                                .type = DType::bf16,
                                .codes = tiles_at(of_down, down[static_cast<size_t>(layer)])},
                               queue.stream());
    cuda::launched("down_channels", queue.stream());
  };
  // Codes of gates and ups are read together.
  const double row = static_cast<double>(down_bytes) / s.channels,
               upper_row = static_cast<double>(upper_bytes) / s.channels / (coded ? 1 : 2);
  const auto report = [&](const char* name, double upper_rows, double down_rows,
                          const std::function<void(int layer)>& run) {
    const double bytes = upper_rows * upper_row + down_rows * row;
    const double us = microseconds(queue, 4 * kLayers, [&](int i) { run(i % kLayers); });
    fmt::print(
        "{{\"case\": \"{}\", \"weights\": \"{}\", \"dim\": {}, \"channels\": {}, \"listed\": {}, "
        "\"rows\": {}, \"microseconds\": {:.2f}, \"tb_per_s\": {:.3f}, "
        "\"share_of_read_rate\": {:.3f}}}\n",
        name, s.name, s.dim, s.channels, list.size(), s.rows, us, bytes / us * 1e-6,
        bytes / us * 1e6 / read_rate);
    std::fflush(stdout);
  };
  const auto listed = static_cast<double>(list.size());
  const double gated = coded ? listed : 2 * listed;
  report("gated_channels", gated, 0, [&](int l) { gates(l, ChannelOutput::gated); });
  report("up_channels", listed, 0, [&](int l) { gates(l, ChannelOutput::up); });
  report("gates", s.channels, 0, [&](int l) { gates(l, ChannelOutput::gate); });
  report("down_channels", 0, listed, [&](int l) { downs(l, false); });
  report("down, all channels", 0, s.channels, [&](int l) { downs(l, true); });
  report("gated_channels, down_channels", gated, listed, [&](int l) {
    gates(l, ChannelOutput::gated);
    downs(l, false);
  });
  report("gates, up_channels, down_channels", s.channels + listed, listed, [&](int l) {
    gates(l, ChannelOutput::gate);
    gates(l, ChannelOutput::up);
    downs(l, false);
  });
}

}  // namespace

int main(int argc, char** argv) {
  cuda::Queue queue(0);
  const double rate = measured_read_rate(queue);
  const auto codes = [](Code code, int group, Zero zero) {
    const ScaleType scale = code == Code::fp8 ? ScaleType::f32 : ScaleType::f16;
    return CodeTiles{.group = group, .code = code, .scale = scale, .zero = zero};
  };
  const std::vector<std::pair<const char*, CodeTiles>> formats = {
      {"bf16", {}},
      {"i4 g128", codes(Code::i4, 128, Zero::none)},
      {"i4 g32 min", codes(Code::i4, 32, Zero::minimum)},
      {"i8 g128", codes(Code::i8, 128, Zero::none)},
      {"fp8 g128", codes(Code::fp8, 128, Zero::none)}};
  for (const auto& [name, format] : formats)
    for (const int rows : {1, 2, 4, 8, 16}) {
      Setting s{.rows = rows, .format = format, .name = name};
      if (argc == 5) {
        s = {std::atoi(argv[1]),
             std::atoi(argv[2]),
             std::atof(argv[3]),
             std::atoi(argv[4]),
             format,
             name};
        if (rows > 1) break;
      }
      time_setting(queue, s, rate);
    }
}
