// Times how a GPU quantizes a staging buffer of numbers in pinned memory or in its own, and the
// copy of the buffer. Prints one JSON line for a format. Not a test; run it by hand:
// bench_gpu_quantize_tiles
#include <fmt/format.h>

#include "base/weight_format.h"
#include "gpu/bench_memory.h"
#include "kernels/cuda_table.h"

using namespace tandem;
using namespace tandem::bench_gpu;

int main() {
  constexpr size_t kBytes = size_t{32} << 20;
  constexpr int kRuns = 8;
  cuda::Queue queue(0);
  const Memory on_gpu(kBytes), tiles(kBytes);
  const cuda::PinnedBuffer on_host(kBytes);
  fill_random(queue, on_gpu, kBytes);
  queue.copy_out(on_host.data(), on_gpu.at, kBytes);
  queue.wait();
  const auto rate = [&](const auto& run) {
    return kBytes / microseconds(queue, kRuns, [&](int) { run(); }) / 1e3;
  };
  const double copy = rate([&] { queue.copy_in(on_gpu.at, on_host.data(), kBytes); });
  for (const int in : {4096, 14336})
    for (const WeightFormat& f : {WeightFormat(Code::i4, 32, ScaleType::f16, Zero::integer),
                                  WeightFormat(Code::i4, 64, ScaleType::f16, Zero::integer),
                                  WeightFormat(Code::i4, 128, ScaleType::f16, Zero::integer),
                                  WeightFormat(Code::i8, 64, ScaleType::f16, Zero::none),
                                  WeightFormat(Code::fp8, 0, ScaleType::f32, Zero::none)})
      for (const bool search : {true, false}) {
        if (search && f.code == Code::fp8) continue;
        const int n = static_cast<int>(kBytes) / 2 / in / kTileOutputs;
        const CodeTiles t{.out = n * kTileOutputs,
                          .in = in,
                          .group = f.group,
                          .code = f.code,
                          .scale = f.scale,
                          .zero = f.zero};
        const auto from = [&](const void* numbers) {
          return rate([&] {
            cuda_table().quantize_tiles({.to = static_cast<uint8_t*>(tiles.at),
                                         .tiles = t,
                                         .numbers = numbers,
                                         .type = DType::bf16,
                                         .search = search,
                                         .first = 0,
                                         .n = n,
                                         .refused = nullptr,
                                         .number = 0},
                                        queue.stream());
          });
        };
        fmt::print(
            "{{\"kind\": \"quantize_tiles\", \"format\": \"{}\", \"in\": {}, \"search\": {}, "
            "\"gb_per_s\": {{\"pinned\": {:.1f}, \"device\": {:.1f}, \"copy\": {:.1f}}}}}\n",
            format_name(f), in, search, from(on_host.data()), from(on_gpu.at), copy);
        std::fflush(stdout);
      }
}
