// Times products and input gradients of codes that training reads, by the size of the panels that
// they are widened in, and those of numbers. Prints one JSON line for a matrix and a size;
// panel_mib 0 stands for numbers. Not a test; run it by hand: bench_gpu_frozen_codes [ROWS]
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "gpu/bench_memory.h"
#include "kernels/cuda_table.h"
#include "ops/linear_device.h"
#include "ops/linear_gradient.h"
#include "tensor/arena.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};
constexpr int kCopies = 3;  // a matrix that often exceeds the L2 cache

/// Products of a layer of Llama 2 7B.
struct Shape {
  const char* name;
  int64_t out, in;
  bool gated, adds;
};
constexpr Shape kShapes[] = {{"qkv", 12288, 4096, false, false},
                             {"o", 4096, 4096, false, true},
                             {"gate_up", 22016, 4096, true, false},
                             {"down", 4096, 11008, false, true}};

struct Weights {
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  Weights(const ops::PackedWeights::Spec& spec, const std::vector<std::byte>& row) {
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
    arena = std::make_unique<Arena>(plan);
    ops::Staging staging(kGpu, arena->take("load/staging"), plan.find("load/staging")->bytes);
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          for (int64_t r = begin; r < end; ++r)
            std::memcpy(static_cast<std::byte*>(to) + static_cast<size_t>(r - begin) * row.size(),
                        row.data(), row.size());
        },
        {}, staging);
    staging.wait();
  }
};

/// A row of random codes with a scale of 0.01, or of random numbers.
std::vector<std::byte> random_row(const WeightFormat& format, int64_t in) {
  std::vector<std::byte> row(row_bytes(format, in));
  PhiloxStream stream(3, 1);
  if (!is_coded(format)) {
    for (int64_t i = 0; i < in; ++i) {
      const bf16 x = to_bf16(static_cast<float>(2 * stream.uniform() - 1));
      std::memcpy(row.data() + i * 2, &x, sizeof x);
    }
    return row;
  }
  for (std::byte& b : row) b = static_cast<std::byte>(stream.below(256));
  const f16 scale = to_f16(0.01f);
  const size_t group = row.size() / static_cast<size_t>(in / format.group);
  for (size_t at = group - sizeof scale; at < row.size(); at += group)
    std::memcpy(row.data() + at, &scale, sizeof scale);
  return row;
}

void time_shape(cuda::Queue& queue, const Shape& s, const WeightFormat& format, int64_t rows) {
  const ops::PackedWeights::Spec spec{.name = "weights/w",
                                      .out = s.out,
                                      .in = s.in,
                                      .stored = format,
                                      .input = DType::bf16,
                                      .device = kGpu,
                                      .trainable = true,
                                      .gated = s.gated};
  const std::vector<std::byte> row = random_row(format, s.in);
  std::vector<Weights> copies;
  for (int i = 0; i < kCopies; ++i) copies.emplace_back(spec, row);
  const DType y_type = s.adds ? DType::f32 : DType::bf16;
  const auto bytes = [&](int64_t n, DType type) {
    return static_cast<size_t>(rows * n) * dtype_bytes(type);
  };
  const Memory x(bytes(s.in, DType::bf16)), y(bytes(s.out, y_type)), dy(bytes(s.out, DType::bf16)),
      dx(bytes(s.in, DType::bf16)),
      workspace(
          ops::linear_cuda::kWorkspaceBytes +
          std::max(ops::linear_cuda::kTrainedPanelBytes, matrix_bytes(DType::bf16, s.out, s.in)));
  fill_random(queue, x, bytes(s.in, DType::bf16));
  fill_random(queue, dy, bytes(s.out, DType::bf16));
  const auto tensor = [&](const Memory& at, DType type, int64_t n) {
    return Tensor(at.at, type, {rows, n}, kGpu);
  };
  const Tensor tx = tensor(x, DType::bf16, s.in), ty = tensor(y, y_type, s.out),
               tdy = tensor(dy, DType::bf16, s.out), tdx = tensor(dx, DType::bf16, s.in);
  const auto add = s.adds ? ops::Accumulate::yes : ops::Accumulate::no;
  double widen = 0;
  if (const CodeTiles* tiles = copies.front().packed.device_codes())
    widen = microseconds(queue, kCopies, [&](int i) {
      const CodeTiles& t = *copies[static_cast<size_t>(i)].packed.device_codes();
      cuda_table().widen_tiles(
          {.out = reinterpret_cast<bf16*>(static_cast<std::byte*>(workspace.at) +
                                          ops::linear_cuda::kWorkspaceBytes),
           .tiles = t,
           .first = 0,
           .n = tiles->down(),
           .begin = 0,
           .inputs = tiles->in},
          queue.stream());
    });
  for (const size_t mib : {0, 16, 32, 64, 128}) {
    if ((mib == 0) == is_coded(format)) continue;
    const std::span<std::byte> scratch(static_cast<std::byte*>(workspace.at),
                                       ops::linear_cuda::kWorkspaceBytes + (mib << 20));
    const ops::PackedWeights* const first[] = {&copies.front().packed};
    ops::tune_linear(ty, tx, first, add, {}, scratch, queue.stream());
    ops::tune_input_gradient(tdx, tdy, copies.front().packed, scratch, queue.stream());
    const auto each = [&](const auto& run) {
      return microseconds(queue, 2 * kCopies,
                          [&](int i) { run(copies[static_cast<size_t>(i % kCopies)].packed); });
    };
    const double product = each(
        [&](const ops::PackedWeights& w) { ops::linear(ty, tx, w, add, scratch, queue.stream()); });
    const double gradient = each([&](const ops::PackedWeights& w) {
      ops::linear_input_gradient(tdx, tdy, w, ops::Accumulate::no, scratch, queue.stream());
    });
    fmt::print(
        "{{\"kind\": \"frozen_codes\", \"matrix\": \"{}\", \"format\": \"{}\", \"rows\": {}, "
        "\"panel_mib\": {}, \"product_us\": {:.1f}, \"gradient_us\": {:.1f}, \"widen_us\": "
        "{:.1f}}}\n",
        s.name, format_name(format), rows, mib, product, gradient, widen);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rows = argc > 1 ? std::atoi(argv[1]) : 2048;
  cuda::Queue queue(0);
  for (const WeightFormat& format :
       {WeightFormat(DType::bf16), WeightFormat(Code::i4, 128, ScaleType::f16, Zero::none),
        WeightFormat(Code::i8, 128, ScaleType::f16, Zero::none)})
    for (const Shape& s : kShapes) time_shape(queue, s, format, rows);
  return 0;
}
