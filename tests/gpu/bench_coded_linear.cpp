// Times dense layers of codes on a GPU: all products of a model's layers in turn. Prints one JSON
// line for a number of rows and a format. Not a test; run it by hand: bench_gpu_coded_linear
// [LAYERS]
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "gpu/bench_memory.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

/// Products of a layer of Llama 3.1 8B: outputs and inputs.
struct Shape {
  int out, in;
  bool gated;
};
constexpr Shape kShapes[] = {
    {6144, 4096, false}, {4096, 4096, false}, {28672, 4096, true}, {4096, 14336, false}};

struct Matrix {
  CodeTiles tiles;
  std::unique_ptr<Memory> data;
  size_t bytes;

  Matrix(cuda::Queue& queue, const Shape& s, Code code, int group, Zero zero)
      : tiles{.out = s.out,
              .in = s.in,
              .group = group,
              .code = code,
              .scale = code == Code::fp8 ? ScaleType::f32 : ScaleType::f16,
              .zero = zero,
              .paired = s.gated},
        bytes(static_cast<size_t>(tiles.down() * tiles.row_bytes())) {
    data = std::make_unique<Memory>(bytes);
    fill_random(queue, *data, bytes);
    tiles.data = static_cast<const uint8_t*>(data->at);
  }
};

void time_format(cuda::Queue& queue, int layers, Code code, int group, Zero zero,
                 double read_rate) {
  std::vector<std::vector<Matrix>> model(static_cast<size_t>(layers));
  size_t bytes = 0;
  for (std::vector<Matrix>& layer : model)
    for (const Shape& s : kShapes) bytes += layer.emplace_back(queue, s, code, group, zero).bytes;
  constexpr int kMostRows = 256;
  const Memory x(kMostRows * 14336 * 2), y(kMostRows * 28672 * 4);
  fill_random(queue, x, kMostRows * 14336 * 2);
  for (const int rows : {1, 4, 5, 8, 16, 32, 64, 128, kMostRows}) {
    const auto run = [&](int only) {
      return microseconds(queue, layers, [&](int l) {
        for (int k = 0; k < 4; ++k) {
          if (only >= 0 && k != only) continue;
          const CodeTiles& w = model[static_cast<size_t>(l)][static_cast<size_t>(k)].tiles;
          int step = rows;
          while (!cuda_table().coded_linear_fits(w, step, false)) step = (step + 1) / 2;
          for (int row = 0; row < rows; row += step)
            cuda_table().coded_linear({.product = {.y = static_cast<char*>(y.at) + row * w.out,
                                                   .x = static_cast<char*>(x.at) + row * w.in * 2,
                                                   .w = nullptr,
                                                   .bias = nullptr,
                                                   .norm_weight = nullptr,
                                                   .norm_eps = 0,
                                                   .rows = step,
                                                   .out = w.out,
                                                   .in = w.in,
                                                   .y_type = DType::bf16,
                                                   .accumulate = false,
                                                   .gated = w.paired,
                                                   .gate = Gate::silu,
                                                   .stages = 0},
                                       .w = w,
                                       .y_stride = w.paired ? w.out / 2 : w.out},
                                      queue.stream());
        }
      });
    };
    const double each[] = {run(0), run(1), run(2), run(3)}, all = run(-1);
    fmt::print(
        "{{\"kind\": \"coded_linear\", \"code\": \"{}\", \"group\": {}, \"zero\": {}, \"rows\": "
        "{}, "
        "\"ms\": {:.4f}, \"share_of_read_rate\": {:.3f}, \"us\": [{:.2f}, {:.2f}, {:.2f}, "
        "{:.2f}]}}\n",
        code == Code::i4   ? "i4"
        : code == Code::i8 ? "i8"
                           : "fp8",
        group, static_cast<int>(zero), rows, all * layers / 1e3,
        static_cast<double>(bytes) / (all * layers * 1e-6) / read_rate, each[0], each[1], each[2],
        each[3]);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int layers = argc > 1 ? std::atoi(argv[1]) : 32;
  cuda::Queue queue(0);
  const double rate = measured_read_rate(queue);
  fmt::print("{{\"kind\": \"read_rate\", \"gb_per_s\": {:.0f}}}\n", rate / 1e9);
  for (const auto& [code, group, zero] :
       {std::tuple(Code::i4, 128, Zero::none), std::tuple(Code::i4, 64, Zero::integer),
        std::tuple(Code::i4, 32, Zero::none), std::tuple(Code::i4, 32, Zero::minimum),
        std::tuple(Code::i8, 128, Zero::none), std::tuple(Code::i8, 32, Zero::none),
        std::tuple(Code::fp8, 0, Zero::none)})
    time_format(queue, layers, code, group, zero, rate);
  return 0;
}
