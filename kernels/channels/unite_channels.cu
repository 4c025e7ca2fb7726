#include "kernels/channels/unite_channels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scan.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 512;
constexpr int kWordBits = 32;

__global__ void __launch_bounds__(kThreads) unite_channels_lists(const UniteChannelsParams p) {
  extern __shared__ uint32_t bits[];  // one a channel
  cuda::start_after_previous();
  const int64_t l = blockIdx.x;
  const int first = static_cast<int>(threadIdx.x);
  const int n_words = (p.n_channels + kWordBits - 1) / kWordBits;
  for (int w = first; w < n_words; w += kThreads) bits[w] = 0;
  __syncthreads();
  for (int b = 0; b < p.n_seqs; ++b) {
    if (p.row_begin[b] == p.row_begin[b + 1]) continue;
    const int64_t slot = p.slot[b];
    const int32_t* const list = p.lists + slot * p.slot_stride + l * p.list_stride;
    const int n = p.counts[slot * p.count_stride + l];
    for (int i = first; i < n; i += kThreads)
      atomicOr(&bits[list[i] / kWordBits], 1u << (list[i] % kWordBits));
  }
  __syncthreads();
  int before_turn = 0;
  for (int begin = 0; begin < n_words; begin += kThreads) {
    const int w = begin + first;
    uint32_t word = w < n_words ? bits[w] : 0;
    int all;
    int at = before_turn + cuda::sum_before<kThreads>(__popc(word), all);
    for (; word != 0; word &= word - 1)
      p.ids[l * p.n_channels + at++] = w * kWordBits + __ffs(static_cast<int>(word)) - 1;
    before_turn += all;
  }
  if (first != 0) return;
  p.n[l] = before_turn;
  if (p.counted == nullptr) return;
  p.counted[2 * l] += 1;
  p.counted[2 * l + 1] += before_turn;
}

}  // namespace

void unite_channels_cuda(const UniteChannelsParams& p, Stream stream) {
  if (p.n_lists == 0) return;
  const auto words = static_cast<size_t>((p.n_channels + kWordBits - 1) / kWordBits);
  cuda::launch(unite_channels_lists, dim3(static_cast<unsigned>(p.n_lists)), kThreads,
               words * sizeof(uint32_t), 1, stream, p);
}

}  // namespace tandem
