#pragma once
// Shared by the timings of attention: device memory and what fills it.
#include <algorithm>
#include <functional>
#include <vector>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/cuda_table.h"
#include "tensor/cuda.h"

namespace tandem::bench_gpu {

struct Memory {
  void* at;
  explicit Memory(size_t bytes) : at(cuda::allocate(0, bytes)) {}
  Memory(const Memory&) = delete;
  ~Memory() { cuda::free_memory(at); }
};

/// Device memory full of random bf16 in [-1, 1), a block of 8 MiB over and over.
inline void fill_random(cuda::Queue& queue, const Memory& to, size_t bytes) {
  std::vector<bf16> block(std::min<size_t>(bytes, 8 << 20) / 2);
  PhiloxStream stream(7, 1);
  for (bf16& x : block) x = to_bf16(static_cast<float>(2 * stream.uniform() - 1));
  for (size_t done = 0; done < bytes; done += block.size() * 2)
    queue.copy_in(static_cast<char*>(to.at) + done, block.data(),
                  std::min(block.size() * 2, bytes - done));
  queue.wait();
}

template <class T>
void put(cuda::Queue& queue, const Memory& to, const std::vector<T>& from) {
  queue.copy_in(to.at, from.data(), from.size() * sizeof(T));
  queue.wait();
}

/// The numbers from 0 to n - 1 in a random order: the pages of a table.
inline std::vector<int32_t> shuffled(size_t n) {
  std::vector<int32_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  PhiloxStream stream(1, 1);
  for (size_t i = n; i > 1; --i)
    std::swap(order[i - 1], order[stream.below(static_cast<uint32_t>(i))]);
  return order;
}

/// Microseconds of one of n runs in a graph, the median of some graphs.
inline double microseconds(cuda::Queue& queue, int n, const std::function<void(int i)>& run) {
  constexpr int kRepeats = 21;
  const cuda::Graph graph(queue, [&] {
    for (int i = 0; i < n; ++i) run(i);
  });
  cuda::Event begin(true), end(true);
  std::vector<float> ms;
  for (int i = 0; i < kRepeats; ++i) {
    begin.record(queue);
    graph.launch(queue);
    end.record(queue);
    end.wait();
    ms.push_back(end.ms_since(begin));
  }
  std::ranges::sort(ms);
  return double{ms[kRepeats / 2]} * 1e3 / n;
}

/// Bytes a second of a kernel that only reads.
inline double measured_read_rate(cuda::Queue& queue) {
  constexpr size_t kBytes = size_t{4} << 30;
  const Memory data(kBytes), sink(4096);
  fill_random(queue, data, kBytes);
  return kBytes / (1e-6 * microseconds(queue, 4, [&](int) {
                     cuda_table().read_probe(data.at, kBytes, static_cast<uint32_t*>(sink.at),
                                             queue.stream());
                   }));
}

}  // namespace tandem::bench_gpu
