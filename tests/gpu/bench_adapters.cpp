// Times adapters on a GPU, one JSON line a setting: products of as many adapters as rows, and
// switches of one matrix, as the S2FT paper's figure 6 has them (slices of 64 and rank 32, or 32
// and 16: as many numbers). Not a test; run it by hand: bench_gpu_adapters
#include <fmt/format.h>

#include <functional>
#include <memory>

#include "gpu/bench_memory.h"
#include "kernels/cuda_table.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

/// Parts of as many adapters, and groups of a row each.
struct Parts {
  Memory values, index, table, adapter, rows, n;
  RowGroups groups;

  Parts(cuda::Queue& queue, int adapters, int features, int width, int of)
      : values(bytes(adapters, features) * static_cast<size_t>(width) * 2),
        index(static_cast<size_t>(features) * 4),
        table(static_cast<size_t>(adapters) * sizeof(AdapterPart)),
        adapter(static_cast<size_t>(adapters) * 4),
        rows(static_cast<size_t>(adapters) * kGroupRows * 4),
        n(4) {
    fill_random(queue, values, bytes(adapters, features) * static_cast<size_t>(width) * 2);
    std::vector<int32_t> chosen, ids, first;
    for (int i = 0; i < features; ++i) chosen.push_back(i * (of / features));
    std::vector<AdapterPart> parts;
    for (int a = 0; a < adapters; ++a) {
      ids.push_back(a);
      first.push_back(a);
      first.insert(first.end(), kGroupRows - 1, -1);
      parts.push_back(
          {static_cast<char*>(values.at) + bytes(a, features) * static_cast<size_t>(width) * 2,
           static_cast<const int32_t*>(index.at), features});
    }
    put(queue, index, chosen);
    put(queue, adapter, ids);
    put(queue, rows, first);
    put(queue, table, parts);
    put(queue, n, std::vector<int32_t>{adapters});
    groups = {.adapter = static_cast<const int32_t*>(adapter.at),
              .rows = static_cast<const int32_t*>(rows.at),
              .n = static_cast<const int32_t*>(n.at),
              .most = adapters,
              .settled = true};
  }
  static size_t bytes(int a, int features) {
    return static_cast<size_t>(a) * static_cast<size_t>(features);
  }
  const AdapterPart* parts() const { return static_cast<const AdapterPart*>(table.at); }
};

void dots(cuda::Queue& queue, const Parts& p, const Memory& y, const Memory& x, int in, int most,
          int64_t stride) {
  cuda_table().grouped_dots({.y = y.at,
                             .x = x.at,
                             .parts = p.parts(),
                             .groups = p.groups,
                             .y_stride = stride,
                             .in = in,
                             .part_stride = 1,
                             .most = most,
                             .type = DType::bf16,
                             .y_type = DType::bf16,
                             .add = stride > most},
                            queue.stream());
  cuda::launched("grouped_dots", queue.stream());
}

void sums(cuda::Queue& queue, const Parts& p, const Memory& y, const Memory& x, int64_t x_stride,
          int out, int most) {
  cuda_table().grouped_sums({.y = y.at,
                             .x = x.at,
                             .parts = p.parts(),
                             .groups = p.groups,
                             .y_stride = out,
                             .x_stride = x_stride,
                             .part_stride = 1,
                             .most = most,
                             .n_targets = 1,
                             .targets = {{0, out, 0}},
                             .type = DType::bf16,
                             .y_type = DType::f32},
                            queue.stream());
  cuda::launched("grouped_sums", queue.stream());
}

void report(cuda::Queue& queue, const std::string& name, const std::string& shape, double bytes,
            const std::function<void(int)>& run) {
  const double us = microseconds(queue, 32, run);
  fmt::print("{{\"case\": \"{}\", {}, \"microseconds\": {:.2f}, \"tb_per_s\": {:.3f}}}\n", name,
             shape, us, bytes / us * 1e-6);
}

/// Adapters = rows = n. Of few, copies in turn are together beyond the GPU's cache.
void time_products(cuda::Queue& queue, int n, int in, int out, int slices, int rank) {
  const auto rows = static_cast<size_t>(n);
  const size_t all = rows * static_cast<size_t>(slices * out) * 2;
  const int copies = static_cast<int>(std::clamp<size_t>((size_t{400} << 20) / all, 1, 64));
  std::vector<std::unique_ptr<Parts>> w1, w2, a, b;
  for (int i = 0; i < copies; ++i) {
    w1.push_back(std::make_unique<Parts>(queue, n, slices, in, out));
    w2.push_back(std::make_unique<Parts>(queue, n, slices, out, in));
    a.push_back(std::make_unique<Parts>(queue, n, rank, in, rank));
    b.push_back(std::make_unique<Parts>(queue, n, rank, out, rank));
  }
  const Memory x(rows * static_cast<size_t>(in) * 2), y(rows * static_cast<size_t>(out) * 4),
      inner(rows * static_cast<size_t>(rank) * 2);
  fill_random(queue, x, rows * static_cast<size_t>(in) * 2);
  put(queue, y, std::vector<float>(rows * static_cast<size_t>(out)));
  const std::string shape =
      fmt::format("\"adapters\": {}, \"in\": {}, \"out\": {}, \"slices\": {}, \"rank\": {}", n, in,
                  out, slices, rank);
  const double each = static_cast<double>(n) * 2;
  const auto of = [&](const auto& all_of, int i) -> const Parts& {
    return *all_of[static_cast<size_t>(i % copies)];
  };
  report(queue, "slices of outputs", shape, each * slices * in,
         [&](int i) { dots(queue, of(w1, i), y, x, in, slices, out); });
  report(queue, "slices of inputs", shape, each * slices * out,
         [&](int i) { sums(queue, of(w2, i), y, x, in, out, slices); });
  report(queue, "low rank", shape, each * rank * (in + out), [&](int i) {
    dots(queue, of(a, i), inner, x, in, rank, rank);
    sums(queue, of(b, i), y, inner, rank, out, rank);
  });
}

/// Of one matrix [n, n]: slices written, rows or columns of it, and factors merged.
void time_switch(cuda::Queue& queue, int n, int slices, int rank) {
  const auto size = static_cast<size_t>(n);
  const int copies =
      static_cast<int>(std::clamp<size_t>((size_t{400} << 20) / (size * size * 2), 1, 64));
  std::vector<std::unique_ptr<Memory>> w, base;
  for (int i = 0; i < copies; ++i) {
    w.push_back(std::make_unique<Memory>(size * size * 2));
    base.push_back(std::make_unique<Memory>(size * size * 2));
    fill_random(queue, *base.back(), size * size * 2);
  }
  const Memory values(static_cast<size_t>(slices) * size * 2),
      index(static_cast<size_t>(slices) * 4), a(static_cast<size_t>(rank) * size * 4),
      b(static_cast<size_t>(rank) * size * 4);
  fill_random(queue, values, static_cast<size_t>(slices) * size * 2);
  put(queue, a, std::vector<float>(static_cast<size_t>(rank) * size, 0.01f));
  put(queue, b, std::vector<float>(static_cast<size_t>(rank) * size, 0.01f));
  std::vector<int32_t> chosen;
  for (int i = 0; i < slices; ++i) chosen.push_back(i * (n / slices));
  put(queue, index, chosen);
  const std::string shape = fmt::format("\"n\": {}, \"slices\": {}, \"rank\": {}", n, slices, rank);
  for (const bool columns : {false, true}) {
    std::vector<std::unique_ptr<Memory>> tables;
    for (int i = 0; i < copies; ++i) {
      tables.push_back(std::make_unique<Memory>(sizeof(SliceWrite)));
      put(queue, *tables.back(),
          std::vector<SliceWrite>{{.weights = w[static_cast<size_t>(i)]->at,
                                   .values = values.at,
                                   .index = static_cast<const int32_t*>(index.at),
                                   .stride = n,
                                   .n = slices,
                                   .width = n,
                                   .columns = columns}});
    }
    report(queue, columns ? "write columns" : "write rows", shape, 2.0 * slices * n * 2,
           [&](int i) {
             cuda_table().write_slices({.slices = static_cast<const SliceWrite*>(
                                            tables[static_cast<size_t>(i % copies)]->at),
                                        .n = 1,
                                        .number_bytes = 2},
                                       queue.stream());
             cuda::launched("write_slices", queue.stream());
           });
  }
  report(queue, "merge low rank", shape, 2.0 * n * n * 2, [&](int i) {
    cuda_table().merge_low_rank({.weights = w[static_cast<size_t>(i % copies)]->at,
                                 .base = base[static_cast<size_t>(i % copies)]->at,
                                 .a = static_cast<const float*>(a.at),
                                 .b = static_cast<const float*>(b.at),
                                 .scale = nullptr,
                                 .rows = n,
                                 .in = n,
                                 .rank = rank,
                                 .by_input = false,
                                 .type = DType::bf16},
                                queue.stream());
    cuda::launched("merge_low_rank", queue.stream());
  });
}

}  // namespace

int main() {
  cuda::Queue queue(0);
  for (const int n : {1, 10, 100, 1000, 10000}) time_products(queue, n, 2048, 2048, 64, 32);
  time_products(queue, 8, 14336, 4096, 430, 16);  // down of the 8B shape, 3 % of its channels
  for (const int n : {1024, 2048, 4096, 8192, 16384}) time_switch(queue, n, 32, 16);
}
