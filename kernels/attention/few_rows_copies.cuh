#pragma once
// The copies of few_rows_loader.cuh by any GPU from Ampere on: all lanes of the loading warps copy
// 16 bytes at a time, from a run of rows or from rows anywhere.
#include "kernels/attention/few_rows_mma.cuh"
#include "kernels/cuda/cp_async.cuh"

namespace tandem {
namespace {

template <class Shape>
class AsyncCopies {
 public:
  struct Source {};  // the pools are in the call
  // One warp alone has too few copies under way: of lists it brought 1.5 TB/s on an H200.
  static constexpr int kWarps = 4;
  // Those of the lanes' copies, and of the lane that also writes what the mailbox says of a unit.
  static constexpr unsigned kArrivals = kWarps * cuda::kWarp + 1;
  static constexpr bool kLists = true, kRuns = true;

  __device__ static void prepare(const Source&) {}
  __device__ AsyncCopies(const FewRowsCall& call, const Source&)
      : pools_{static_cast<const Element*>(call.params.k_pool),
               static_cast<const Element*>(call.params.v_pool)},
        of_lists_{static_cast<const Element*>(call.params.lists.k_pool),
                  static_cast<const Element*>(call.params.lists.v_pool)} {}

  __device__ static bool working(int) { return true; }

  __device__ void start(cuda::Barrier& full, unsigned char* unit, int row, int part,
                        bool listed) const {
    const uint32_t to = place(unit, part);
    const Pools from_pools = listed ? of_lists_ : pools_;
    const int64_t from = int64_t{row + part * static_cast<int>(kPart)} * Shape::kDim + lane() * 8;
#pragma unroll
    for (unsigned i = 0; i < kPart; i += kRows)
      copy(to, i, from_pools, from + i * Shape::kDim, row >= 0);
    arrive(full, part);
  }
  __device__ void start_apart(cuda::Barrier& full, unsigned char* unit, int own_row,
                              int part) const {
    const unsigned piece = lane() % kPieces, key = lane() / kPieces;
    const uint32_t to = place(unit, part);
#pragma unroll
    for (unsigned i = 0; i < kPart; i += kRows) {
      const int row = __shfl_sync(cuda::kAllLanes, own_row, i + key);
      copy(to, i, pools_, int64_t{row} * Shape::kDim + piece * 8, row >= 0);
    }
    arrive(full, part);
  }
  __device__ static void arrive(cuda::Barrier& full, int part) {
    full.arrive_after_copies();
    if (part == 0 && lane() == 0) full.arrive();
  }

 private:
  using Element = __nv_bfloat16;
  struct Pools {
    const Element *k, *v;
  };
  static constexpr unsigned kPieces = Shape::kDim / 8, kRows = cuda::kWarp / kPieces;
  static constexpr unsigned kPart = Shape::kKeys / kWarps;  // of a warp
  static_assert(kPart % kRows == 0);

  __device__ static unsigned lane() { return threadIdx.x % cuda::kWarp; }
  /// Rows of 128 bytes: piece i of 16 bytes lies at i ^ (key % 8), as the workers read it. The keys
  /// of a lane differ by multiples of kRows, a power of two, so theirs follows by xor.
  __device__ static uint32_t place(unsigned char* unit, int part) {
    const unsigned piece = lane() % kPieces;
    const unsigned in_unit = static_cast<unsigned>(part) * kPart + lane() / kPieces;
    return cuda::shared_address(unit) + piece / 8 * Shape::kHalfBytes + in_unit * 128 +
           (piece % 8 ^ in_unit % 8) * 16;
  }
  __device__ static void copy(uint32_t to, unsigned i, const Pools& pools, int64_t from,
                              bool wanted) {
    const uint32_t at = (to ^ (i % 8 * 16)) + i * 128;
    cuda::copy_async<16>(at, pools.k + from, wanted);
    cuda::copy_async<16>(at + Shape::kUnitBytes, pools.v + from, wanted);
  }

  Pools pools_, of_lists_;
};

template <int kDim, template <class> class Scores>
void launch_async_copies(const FewRowsCall& call, cudaStream_t stream, bool programmatic) {
  with_mma_shape<kDim>(call.rule.tile_queries, [&](auto* shape) {
    using Shape = std::remove_pointer_t<decltype(shape)>;
    launch_few_rows_mma<Shape, AsyncCopies<Shape>, Scores<Shape>>(call, {}, stream, programmatic);
  });
}

}  // namespace
}  // namespace tandem
