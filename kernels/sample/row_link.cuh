#pragma once
// Without clusters the blocks of a row publish data through device memory, and meet at a counter
// there. Blocks are numbered as they begin, row by row, and no launch has rows of more blocks than
// there are multiprocessors: a row whose blocks wait for one that has not begun is the only such
// one, so that room for that block is left or comes to be.
#include "kernels/sample/row_split.h"

namespace tandem::cuda::inline portable {

/// Blocks that a multiprocessor is to have room for: its shared memory has none for two.
inline constexpr int kBlocksASm = 1;

class RowLink {
 public:
  /// shared: holds all that blocks publish in a kernel.
  template <class Shared>
  __device__ RowLink(const RowSplit& split, Shared& shared)
      : parts_(split.parts), local_(reinterpret_cast<char*>(&shared)), slot_bytes_(sizeof(Shared)) {
    static_assert(sizeof(Shared) <= kMostPublishedBytes && sizeof(Shared) % 16 == 0);
    char* const memory = static_cast<char*>(split.memory);
    const int number = parts_ > 1 ? take_number(reinterpret_cast<unsigned*>(memory))
                                  : static_cast<int>(blockIdx.x);
    row_ = number / parts_;
    rank_ = number % parts_;
    meeting_ = reinterpret_cast<Meeting*>(memory + kTicketBytes) + row_;
    char* const slots = memory + kRowCounterBytes;
    published_ = parts_ > 1 ? slots + static_cast<int64_t>(number) * slot_bytes_ : local_;
    data_ = split.in_memory
                ? reinterpret_cast<float*>(slots + static_cast<int64_t>(gridDim.x) * slot_bytes_ +
                                           static_cast<int64_t>(number) * split.data_bytes)
                : nullptr;
  }

  __device__ int row() const { return row_; }
  __device__ int rank() const { return rank_; }
  /// Room for this block's part of the row: shared memory, or device memory where that is too
  /// small.
  __device__ float* data(float* dynamic) const { return data_ != nullptr ? data_ : dynamic; }

  /// All blocks of the row meet; what any of them published before, all can read after.
  __device__ void sync() {
    __syncthreads();
    if (parts_ > 1) {
      if (threadIdx.x == 0) meet();
      __syncthreads();
    }
  }
  /// Where this block's copy of published data lies, and that of block `rank`.
  template <class T>
  __device__ T* own(T* shared) const {
    return reinterpret_cast<T*>(published_ + (reinterpret_cast<char*>(shared) - local_));
  }
  template <class T>
  __device__ T* peer(T* shared, int rank) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(own(shared)) +
                                static_cast<int64_t>(rank - rank_) * slot_bytes_);
  }
  /// Publishes data that was made in shared memory, at the next sync. Called by all threads.
  template <class T>
  __device__ void publish(T& shared) {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0);
    if (parts_ == 1) return;
    __syncthreads();
    const auto* from = reinterpret_cast<const uint32_t*>(&shared);
    auto* to = reinterpret_cast<uint32_t*>(own(&shared));
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(T) / sizeof(uint32_t));
         i += kRowThreads)
      to[i] = from[i];
  }

 private:
  /// Where the blocks of a row meet. A launch leaves `here` at zero.
  struct Meeting {
    unsigned here, times;
  };
  static_assert(sizeof(Meeting) == kMeetingBytes);

  /// The last block to begin leaves the counter at zero.
  __device__ static int take_number(unsigned* ticket) {
    __shared__ unsigned number;
    if (threadIdx.x == 0) {
      number = atomicAdd(ticket, 1);
      if (number == gridDim.x - 1) *ticket = 0;
    }
    __syncthreads();
    return static_cast<int>(number);
  }

  __device__ void meet() const {
    volatile unsigned* const times = &meeting_->times;
    const unsigned before = *times;
    __threadfence();  // the block's writes, and that read, come before the arrival
    if (atomicAdd(&meeting_->here, 1) == static_cast<unsigned>(parts_) - 1) {
      meeting_->here = 0;
      __threadfence();
      *times = before + 1;
    } else {
      while (*times == before) __nanosleep(20);
    }
    __threadfence();  // the others' writes are read again
  }

  int parts_, row_, rank_;
  char *local_, *published_;
  int slot_bytes_;
  Meeting* meeting_;
  float* data_;
};

}  // namespace tandem::cuda::inline portable
