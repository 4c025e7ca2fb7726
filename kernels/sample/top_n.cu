#include "kernels/cuda/number.cuh"
#include "kernels/sample/row_cut.cuh"
#include "kernels/sample/row_launch.cuh"
#include "kernels/sample/sample_cuda.h"

namespace tandem::TANDEM_GPU_BODY {
namespace {

/// The kept tokens of a row in no order, gathered in the first block. Published.
struct Top {
  int n;
  cuda::Best entry[kMaxTopNCuda];
};
struct alignas(16) Shared {
  cuda::RowShared row;
  cuda::CutShared cut;
  Top top;
};

__global__ void __launch_bounds__(cuda::kRowThreads)
    top_n_rows(const TopNParams p, const cuda::RowSplit split) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  cuda::start_after_previous();
  const cuda::RowLink link(split, shared);
  cuda::RowGroup row(split, link, link.data(reinterpret_cast<float*>(dynamic)), shared.row);
  Top* const top = row.own(&shared.top);
  if (threadIdx.x == 0) top->n = 0;  // others see it after load
  const int64_t r = link.row();
  const cuda::Best best = row.load(p.logits + r * split.vocab);
  const bool is_valid = best.is_valid();
  if (is_valid) {
    constexpr float kSpread = 32;  // holds the top of a trained model's logits
    cuda::RowCut cut(row, shared.cut, best.logit(), kSpread);
    cut.narrow([&](uint64_t) { return static_cast<uint64_t>(p.n); },
               [](float) -> uint64_t { return 1; });
    Top* const first = row.peer(&shared.top, 0);
    row.each([&](int i) {
      if (cut.keeps(i))
        first->entry[atomicAdd(&first->n, 1)] = {order_key(row.logit(i)), row.first() + i};
    });
  }
  row.sync();
  const int i = static_cast<int>(threadIdx.x);
  if (row.rank() != 0 || i >= p.n) return;
  int place = i;
  if (is_valid) {
    place = 0;
    for (int j = 0; j < p.n; ++j) place += top->entry[j].comes_before(top->entry[i]);
  }
  const int64_t at = r * p.n + place;
  const int32_t id = top->entry[i].id;
  p.ids[at] = is_valid ? id : kInvalidToken;
  p.logprobs[at] = is_valid ? p.logits[r * split.vocab + id] - p.lse[r] : cuda::quiet_nan();
}

}  // namespace

void top_n_cuda(const TopNParams& p, Stream stream) {
  cuda::check_top_n(p.n, p.vocab);
  if (p.n_rows == 0) return;
  const cuda::RowSplit split = cuda::split_row(cuda::gpu(), p.vocab, p.n_rows);
  cuda::launch_rows(top_n_rows, p.n_rows, split, split.part_bytes(), p.workspace, stream, p);
}

}  // namespace tandem::TANDEM_GPU_BODY
