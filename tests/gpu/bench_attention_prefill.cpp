// Times attention of many rows on a GPU: FLOP/s of causal prefill and of chunks of it, one JSON
// line a setting. Not a test; run it by hand: bench_gpu_attention_prefill [setting...]
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "gpu/bench_memory.h"
#include "kernels/cuda_table.h"
#include "tensor/gpu_isa.h"

using namespace tandem;
using namespace tandem::bench_gpu;

namespace {

struct Setting {
  std::string name;
  int base, rows, d, heads, kv_heads;
  int seqs = 1, window = 0;
};

const std::vector<Setting> kSettings = {
    {"4k", 0, 4096, 128, 32, 8},
    {"8k", 0, 8192, 128, 32, 8},
    {"32k", 0, 32768, 128, 32, 8},
    {"96k", 0, 98304, 128, 32, 8},
    {"chunk2048at30000", 30000, 2048, 128, 32, 8},
    {"chunk512at30000", 30000, 512, 128, 32, 8},
    {"4x1k", 0, 1024, 128, 32, 8, 4},
    {"16x1k", 0, 1024, 128, 32, 8, 16},
    {"32k-window4k", 0, 32768, 128, 32, 8, 1, 4096},
    {"4k-d64", 0, 4096, 64, 32, 8},
    {"32k-d64", 0, 32768, 64, 32, 8},
    {"8k-mha", 0, 8192, 128, 16, 16},
    {"8k-of-128", 0, 8192, 128, 32, 16},  // as many numbers as the next
    {"8k-of-256", 0, 8192, 256, 16, 8},   // Gemma 3 12B
    {"32k-of-128", 0, 32768, 128, 32, 16},
    {"32k-of-256", 0, 32768, 256, 16, 8},
    {"chunk2048-of-128", 30000, 2048, 128, 32, 16},
    {"chunk2048-of-256", 30000, 2048, 256, 16, 8},
};

/// Visible (row, key) pairs of one head.
double pairs(const Setting& s) {
  double n = 0;
  for (int i = 0; i < s.rows; ++i)
    n += s.window > 0 ? std::min(s.base + i + 1, s.window) : s.base + i + 1;
  return n * s.seqs;
}

void time_setting(cuda::Queue& queue, const Setting& s) {
  const int tokens = s.base + s.rows, max_pages = (tokens + kPageTokens - 1) / kPageTokens;
  const size_t rows = static_cast<size_t>(s.rows) * static_cast<size_t>(s.seqs);
  const size_t pages = static_cast<size_t>(max_pages) * static_cast<size_t>(s.seqs);
  const size_t pool =
      pages * static_cast<size_t>(s.kv_heads) * kPageTokens * static_cast<size_t>(s.d) * 2;
  const size_t q_bytes = rows * static_cast<size_t>(s.heads * s.d) * 2;
  const Memory k(pool), v(pool), q(q_bytes), out(q_bytes), table(pages * 4),
      begin((static_cast<size_t>(s.seqs) + 1) * 4), base(static_cast<size_t>(s.seqs) * 4);
  for (const Memory* m : {&k, &v}) fill_random(queue, *m, pool);
  fill_random(queue, q, q_bytes);
  std::vector<int32_t> begins(static_cast<size_t>(s.seqs) + 1);
  for (size_t i = 0; i < begins.size(); ++i) begins[i] = static_cast<int32_t>(i) * s.rows;
  put(queue, table, shuffled(pages));
  put(queue, begin, begins);
  put(queue, base, std::vector<int32_t>(static_cast<size_t>(s.seqs), s.base));

  AttentionParams p{};
  p.out = out.at;
  p.q = q.at;
  p.k_pool = k.at;
  p.v_pool = v.at;
  p.page_table = static_cast<const int32_t*>(table.at);
  p.row_begin = static_cast<const int32_t*>(begin.at);
  p.base = static_cast<const int32_t*>(base.at);
  p.dtype = p.out_dtype = DType::bf16;
  p.n_seqs = s.seqs;
  p.max_pages = max_pages;
  p.n_heads = s.heads;
  p.n_kv_heads = s.kv_heads;
  p.head_dim = s.d;
  p.window = s.window;
  p.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  const AttentionRows bounds{static_cast<int>(rows), s.rows, tokens};

  const double flops = 4.0 * s.d * s.heads * pairs(s);
  cuda::Event start(true), end(true);
  std::vector<float> ms;
  const int runs = flops > 2e13 ? 10 : 30;
  for (int i = -3; i < runs; ++i) {
    start.record(queue);
    cuda_table().attention_many_rows(p, bounds, queue.stream());
    cuda::launched("attention_many_rows", queue.stream());
    end.record(queue);
    queue.wait();
    if (i >= 0) ms.push_back(end.ms_since(start));
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  fmt::print("{{\"setting\": \"{}\", \"ms\": {:.4f}, \"min_ms\": {:.4f}, \"tflops\": {:.1f}}}\n",
             s.name, median, ms[0], flops / median * 1e-9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (cuda::device_count() == 0) {
    fmt::print(stderr, "skipped: {}\n", cuda::why_none());
    return 77;
  }
  cuda::force_gpu_isa_by_environment();
  cuda::Queue queue(0);
  for (const Setting& s : kSettings)
    if (argc == 1 || std::find(argv + 1, argv + argc, s.name) != argv + argc)
      time_setting(queue, s);
  return 0;
}
