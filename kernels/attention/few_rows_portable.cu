// Attention of few rows in bf16 by the copies and barriers of any GPU from Ampere on: all lanes of
// the loading warp copy 16 bytes at a time.
#include "kernels/attention/few_rows_bodies.cuh"
#include "kernels/attention/few_rows_mma.cuh"
#include "kernels/cuda/cp_async.cuh"

namespace tandem::portable {
namespace {

template <class Shape>
class AsyncCopies {
 public:
  struct Source {};  // the pools are in the call
  // Those of the lanes' copies, and of the lane that also writes what the mailbox says of a unit.
  static constexpr unsigned kArrivals = cuda::kWarp + 1;

  __device__ static void prepare(const Source&) {}
  __device__ AsyncCopies(const FewRowsCall& call, const Source&)
      : k_(static_cast<const __nv_bfloat16*>(call.params.k_pool)),
        v_(static_cast<const __nv_bfloat16*>(call.params.v_pool)) {}

  __device__ static bool working(int) { return true; }

  __device__ void start(cuda::Barrier& full, unsigned char* unit, int row) const {
    const unsigned lane = threadIdx.x % cuda::kWarp;
    const unsigned piece = lane % kPieces, key = lane / kPieces;
    // Rows of 128 bytes: piece i of 16 bytes lies at i ^ (key % 8), as the workers read it. The
    // keys of a lane differ by multiples of kRows, a power of two, so theirs follows by xor.
    const uint32_t to = cuda::shared_address(unit) + piece / 8 * Shape::kHalfBytes + key * 128 +
                        (piece % 8 ^ key % 8) * 16;
    const int64_t from = int64_t{row} * Shape::kDim + lane * 8;
#pragma unroll 4
    for (unsigned i = 0; i < Shape::kKeys; i += kRows) {
      const uint32_t at = (to ^ (i % 8 * 16)) + i * 128;
      cuda::copy_async<16>(at, k_ + from + i * Shape::kDim, row >= 0);
      cuda::copy_async<16>(at + Shape::kUnitBytes, v_ + from + i * Shape::kDim, row >= 0);
    }
    full.arrive_after_copies();
    if (lane == 0) full.arrive();
  }

 private:
  static constexpr unsigned kPieces = Shape::kDim / 8, kRows = cuda::kWarp / kPieces;
  const __nv_bfloat16 *k_, *v_;
};

template <int kDim>
void launch(const FewRowsCall& call, cudaStream_t stream) {
  with_mma_shape<kDim>(call.rule.tile_queries, [&](auto* shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    const MmaMemory memory = mma_memory<Shape>(call.rule);
    const auto kernel = few_rows_mma<Shape, AsyncCopies<Shape>>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory.total_bytes);
    kernel<<<cuda::gpu().multiprocessors, Shape::kThreads, memory.total_bytes, stream>>>(
        call, memory, {});
  });
}

void mma(const FewRowsCall& call, cudaStream_t stream) {
  call.params.head_dim == 64 ? launch<64>(call, stream) : launch<128>(call, stream);
}

}  // namespace

void attention_few_rows_cuda(const AttentionParams& p, const AttentionLaunch& l, Stream stream) {
  attention_few_rows(p, l, stream, mma);
}

}  // namespace tandem::portable
