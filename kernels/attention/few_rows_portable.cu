// Attention of few rows in bf16 by the copies and barriers of any GPU from Ampere on.
#include "kernels/attention/few_rows_copies.cuh"

namespace tandem::portable {
namespace {

template <template <class> class Scores>
void launch(const FewRowsCall& call, cudaStream_t stream) {
  with_head_dim(call.params.head_dim, [&](auto d) {
    launch_async_copies<decltype(d)::value, Scores>(call, stream, false);
  });
}

void mma(const FewRowsCall& call, cudaStream_t stream) {
  call.scores.at == nullptr ? launch<mma_detail::NoScores>(call, stream)
                            : launch<mma_detail::Scores>(call, stream);
}

}  // namespace

void attention_few_rows_cuda(const AttentionParams& p, const AttentionLaunch& l, Stream stream) {
  attention_few_rows(p, l, stream, mma);
}

}  // namespace tandem::portable
