#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/page/catch_up.h"
#include "kernels/page/newest_after.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) leave_ends(const LeaveEndsParams p) {
  cuda::start_after_previous();
  const int seq = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (seq == 0 && p.ends.turn != nullptr) *p.ends.turn ^= 1;
  if (seq >= p.n_seqs) return;
  p.ends.kept[seq] = p.n_accepted[seq] + 1;
  for (int i = 0; i < kNewestTokens; ++i)
    p.ends.newest[seq * kNewestTokens + i] = newest_after(p, seq, i);
}

// A warp for a sequence and a step; one more for its tokens. Releases nothing early: kernels that
// begin ahead of the one before them may read lengths.
__global__ void __launch_bounds__(cuda::kWarp) catch_up(const CatchUpParams p) {
  cuda::wait_for_previous();
  const int seq = static_cast<int>(blockIdx.x), s = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x);
  const int from = p.prior[seq];
  if (from < 0) return;
  const int kept = p.ends.kept[from];
  if (s == p.n_steps) {
    if (lane == 0) move_text_on(p, seq, from, kept);
    return;
  }
  const StepRows& step = p.steps[s];
  const int base = step.base[seq] + kept;
  __syncwarp();
  if (lane == 0) step.base[seq] = base;
  move_rows_on(step, seq, kept, base, lane, cuda::kWarp);
}

}  // namespace

void leave_ends_cuda(const LeaveEndsParams& p, Stream stream) {
  if (p.n_seqs == 0) return;
  cuda::launch(leave_ends, cuda::blocks_for(p.n_seqs, kThreads), kThreads, stream, p);
}

void catch_up_cuda(const CatchUpParams& p, Stream stream) {
  if (p.n_seqs == 0) return;
  cuda::launch(catch_up,
               dim3(static_cast<unsigned>(p.n_seqs), static_cast<unsigned>(p.n_steps) + 1),
               cuda::kWarp, stream, p);
}

}  // namespace tandem
