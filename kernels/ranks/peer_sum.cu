#include "kernels/cuda/launch.cuh"
#include "kernels/ranks/peer_sum.h"

namespace tandem {
namespace {

constexpr int kThreads = kPeerBlockNumbers / 2;

/// Two numbers and their block's turn, in one access of 16 bytes: of eight of them the hardware
/// makes one, and each half carries its own turn.
__device__ void send(uint4* to, float a, float b, uint32_t turn) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(__float_as_uint(a)), "r"(turn), "r"(__float_as_uint(b)), "r"(turn)
               : "memory");
}

/// Waits for the words of this turn; false once the run has failed.
__device__ bool receive(const uint4* from, uint32_t turn, const uint32_t* abort, float& a,
                        float& b) {
  constexpr int kSpins = 4096;  // between looks at host memory
  for (int spin = 1;; ++spin) {
    uint4 w;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(from)
                 : "memory");
    if (w.y == turn && w.w == turn) {
      a = __uint_as_float(w.x);
      b = __uint_as_float(w.z);
      return true;
    }
    if (spin % kSpins == 0 && *reinterpret_cast<const volatile uint32_t*>(abort) != 0) return false;
  }
}

/// Where the word of a rank lies in an inbox.
__device__ uint4* word_at(const PeerLinks& links, int inbox, uint32_t turn, int of, int64_t word) {
  const int64_t words = links.capacity / 2;
  return static_cast<uint4*>(links.inboxes[inbox]) + ((turn % 2) * links.n_ranks + of) * words +
         word;
}

/// Number i of n, or 0 after the end.
__device__ float number_at(const float* x, int64_t i, int64_t n) { return i < n ? x[i] : 0; }

__device__ void put(float* x, int64_t i, int64_t n, float value) {
  if (i < n) x[i] = value;
}

/// Sends the block's two numbers of this thread to all others.
__device__ uint32_t send_all(const PeerLinks& links, int64_t word, float a, float b) {
  const uint32_t turn = links.turns[blockIdx.x] + 1;
  for (int step = 1; step < links.n_ranks; ++step) {
    const int to = (links.rank + step) % links.n_ranks;
    send(word_at(links, to, turn, links.rank, word), a, b, turn);
  }
  return turn;
}

/// The block's turn is over: its count may be written once all threads have read it.
__device__ void end_turn(const PeerLinks& links, uint32_t turn) {
  __syncthreads();
  if (threadIdx.x == 0) links.turns[blockIdx.x] = turn;
}

__global__ void __launch_bounds__(kThreads) peer_sum(const PeerSumParams p) {
  cuda::release_next();  // whose weights come meanwhile
  cuda::wait_for_previous();
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x, i = 2 * word;
  const float a = number_at(p.x, i, p.n), b = number_at(p.x, i + 1, p.n);
  const uint32_t turn = send_all(p.links, word, a, b);
  float sum_a = 0, sum_b = 0;
  for (int r = 0; r < p.links.n_ranks; ++r) {
    float from_a = a, from_b = b;
    if (r != p.links.rank && !receive(word_at(p.links, p.links.rank, turn, r, word), turn,
                                      p.links.abort, from_a, from_b))
      break;
    sum_a = r == 0 ? from_a : sum_a + from_a;
    sum_b = r == 0 ? from_b : sum_b + from_b;
  }
  put(p.x, i, p.n, sum_a);
  put(p.x, i + 1, p.n, sum_b);
  end_turn(p.links, turn);
}

__global__ void __launch_bounds__(kThreads) peer_gather(const PeerGatherParams p) {
  cuda::release_next();
  cuda::wait_for_previous();
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x, i = 2 * word;
  const float* const own = p.all + p.links.rank * p.stride;
  const uint32_t turn = send_all(p.links, word, number_at(own, i, p.n), number_at(own, i + 1, p.n));
  for (int r = 0; r < p.links.n_ranks; ++r) {
    float a = 0, b = 0;
    if (r == p.links.rank) continue;
    if (!receive(word_at(p.links, p.links.rank, turn, r, word), turn, p.links.abort, a, b)) break;
    put(p.all + r * p.stride, i, p.n, a);
    put(p.all + r * p.stride, i + 1, p.n, b);
  }
  end_turn(p.links, turn);
}

}  // namespace

void peer_sum_cuda(const PeerSumParams& p, Stream stream) {
  cuda::launch(peer_sum, cuda::blocks_for(p.n, kPeerBlockNumbers), kThreads, stream, p);
}

void peer_gather_cuda(const PeerGatherParams& p, Stream stream) {
  cuda::launch(peer_gather, cuda::blocks_for(p.n, kPeerBlockNumbers), kThreads, stream, p);
}

}  // namespace tandem
