// Times the backward pass of attention on a GPU: FLOP/s by the 10 d flops that a visible (query,
// key) pair takes at least, one JSON line a setting. Not a test; run it by hand:
// bench_gpu_backward [setting...]
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
  std::vector<int> documents;  // rows
  int d = 128, heads = 32, kv_heads = 8;
};

const std::vector<Setting> kSettings = {
    {"backward-4k", {4096}},
    {"backward-2x1k-mha", {1024, 1024}, 128, 32, 32},
    {"backward-4k-of-128", {4096}, 128, 32, 16},
    {"backward-4k-of-256", {4096}, 256, 16, 8},
    {"backward-packed", {1700, 250, 900, 420, 600, 226}},
    {"backward-16k", {16384}},
    {"backward-4k-d64", {4096}, 64},
};

void time_setting(cuda::Queue& queue, const Setting& s) {
  const auto seqs = s.documents.size();
  std::vector<int32_t> begins(1), slots;
  double pairs = 0;  // of one head
  int longest = 0;
  for (const int rows : s.documents) {
    slots.push_back(static_cast<int32_t>(slots.size()));
    begins.push_back(begins.back() + rows);
    pairs += rows * (rows + 1.0) / 2;
    longest = std::max(longest, rows);
  }
  const int n_rows = begins.back(), max_pages = (longest + kPageTokens - 1) / kPageTokens;
  const size_t pages = seqs * static_cast<size_t>(max_pages);
  const size_t pool = pages * static_cast<size_t>(s.kv_heads * kPageTokens * s.d) * 2;
  const size_t row_heads = static_cast<size_t>(n_rows) * static_cast<size_t>(s.heads);
  const size_t q_bytes = row_heads * static_cast<size_t>(s.d) * 2;
  const Memory k(pool), v(pool), q(q_bytes), out(q_bytes), dout(q_bytes), lse(row_heads * 4),
      dqkv(static_cast<size_t>(n_rows) * static_cast<size_t>((s.heads + 2 * s.kv_heads) * s.d) * 2),
      table(pages * 4), slot(seqs * 4), begin((seqs + 1) * 4), base(seqs * 4),
      workspace(
          attention_backward_cuda_workspace_bytes(n_rows, s.heads, s.kv_heads, s.d, DType::bf16));
  for (const Memory* m : {&k, &v}) fill_random(queue, *m, pool);
  for (const Memory* m : {&q, &dout}) fill_random(queue, *m, q_bytes);
  put(queue, table, shuffled(pages));
  put(queue, slot, slots);
  put(queue, begin, begins);
  put(queue, base, std::vector<int32_t>(seqs));

  AttentionParams forward{};
  forward.out = out.at;
  forward.lse = static_cast<float*>(lse.at);
  forward.q = q.at;
  forward.k_pool = k.at;
  forward.v_pool = v.at;
  forward.page_table = static_cast<const int32_t*>(table.at);
  forward.row_begin = static_cast<const int32_t*>(begin.at);
  forward.base = static_cast<const int32_t*>(base.at);
  forward.dtype = forward.out_dtype = DType::bf16;
  forward.n_seqs = static_cast<int>(seqs);
  forward.max_pages = max_pages;
  forward.n_heads = s.heads;
  forward.n_kv_heads = s.kv_heads;
  forward.head_dim = s.d;
  forward.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  cuda_table().attention_many_rows(forward, {n_rows, longest, longest}, queue.stream());
  cuda::launched("attention_many_rows", queue.stream());

  const AttentionBackwardParams p{.dqkv = dqkv.at,
                                  .dout = dout.at,
                                  .out = out.at,
                                  .lse = forward.lse,
                                  .q = q.at,
                                  .k_pool = k.at,
                                  .v_pool = v.at,
                                  .page_table = forward.page_table,
                                  .slot = static_cast<const int32_t*>(slot.at),
                                  .row_begin = forward.row_begin,
                                  .act = DType::bf16,
                                  .n_seqs = forward.n_seqs,
                                  .max_pages = max_pages,
                                  .n_heads = s.heads,
                                  .n_kv_heads = s.kv_heads,
                                  .head_dim = s.d,
                                  .scale = forward.scale};
  cuda::Event start(true), end(true);
  std::vector<float> ms;
  for (int i = -3; i < 30; ++i) {
    start.record(queue);
    cuda_table().attention_backward(
        p, {.n_rows = n_rows, .max_rows_a_seq = longest, .workspace = workspace.at},
        queue.stream());
    cuda::launched("attention_backward", queue.stream());
    end.record(queue);
    queue.wait();
    if (i >= 0) ms.push_back(end.ms_since(start));
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2];
  fmt::print("{{\"setting\": \"{}\", \"ms\": {:.4f}, \"min_ms\": {:.4f}, \"tflops\": {:.1f}}}\n",
             s.name, median, ms[0], 10.0 * s.d * s.heads * pairs / median * 1e-9);
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
