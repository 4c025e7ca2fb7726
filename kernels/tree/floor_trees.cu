#include "kernels/tree/floor_trees.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/weights.h"
#include "kernels/tree/row_floor.h"
#include "kernels/tree/traverse_trees.h"

namespace tandem {
namespace {

using cuda::kAllLanes;
using cuda::kWarp;
using cuda::lane_of;
using cuda::warp_of;

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr int kRoom = 2048;  // nodes of a tree whose depths find shared memory

/// What the launches leave for each other, where rules by sequences keep their nodes: of those, the
/// words that must be zero between launches are not touched.
struct Nodes {
  cuda::NodeLink* link;      // parent, and as `order` the depth; -1: not reached
  cuda::NodeRecord* record;  // as `token` whether a node passes; lse of nodes with children

  __device__ Nodes(const VerifyTreesParams& p, int64_t begin)
      : link(reinterpret_cast<cuda::NodeLink*>(static_cast<char*>(p.workspace) + begin)),
        record(reinterpret_cast<cuda::NodeRecord*>(link + p.node_begin[p.n_seqs])) {}
};

/// The value of all threads of a block, combined in a fixed order, in every thread.
template <class T, class Combine>
__device__ T combined(T mine, const Combine& combine) {
  __shared__ T parts[kWarps];
  for (int step = kWarp / 2; step > 0; step /= 2)
    mine = combine(mine, __shfl_xor_sync(kAllLanes, mine, step));
  __syncthreads();
  if (lane_of() == 0) parts[warp_of()] = mine;
  __syncthreads();
  T all = parts[0];
  for (int w = 1; w < kWarps; ++w) all = combine(all, parts[w]);
  return all;
}

/// The sequence that a node belongs to.
__device__ int seq_of(const VerifyTreesParams& p, int at) {
  int low = 0, high = p.n_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.node_begin[middle] <= at)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

/// Blocks take nodes with children in turn, and say which of the children pass.
__global__ void __launch_bounds__(kThreads)
    judge_children(const VerifyTreesParams p, const int64_t begin) {
  cuda::start_after_previous();
  const Nodes nodes(p, begin);
  const int n_nodes = p.node_begin[p.n_seqs], thread = static_cast<int>(threadIdx.x);
  for (int at = static_cast<int>(blockIdx.x); at < n_nodes; at += static_cast<int>(gridDim.x)) {
    const int n_children = p.n_children[at];
    if (n_children == 0) continue;
    const float* const row = p.target_logits + int64_t{p.target_row[at]} * p.vocab;
    float high = -INFINITY;
    int has_nan = 0;
    for (int i = thread; i < p.vocab; i += kThreads) {
      const float x = row[i];
      has_nan |= x != x;
      high = fmaxf(high, x);
    }
    const float max = combined(high, [](float a, float b) { return fmaxf(a, b); });
    const bool has_meaning = combined(has_nan, [](int a, int b) { return a | b; }) == 0 &&
                             max > -INFINITY && max < INFINITY;
    uint64_t total = 0, plain = 0;
    double entropy = 0;
    int best = p.vocab;
    for (int i = thread; i < p.vocab && has_meaning; i += kThreads) {
      const float y = (row[i] - max) / p.floor.temperature;
      const uint64_t w = weight_of(y);
      total += w;
      if (w > 0) entropy += static_cast<double>(w) * y;
      if (row[i] == max && best == p.vocab) best = i;
      if (p.logprobs != nullptr) plain += weight_of(row[i] - max);
    }
    const auto sum = [](auto a, auto b) { return a + b; };
    total = combined(total, sum);
    if (p.accept_by == AcceptBy::typical) entropy = combined(entropy, sum);
    best = combined(best, [](int a, int b) { return a < b ? a : b; });
    if (p.logprobs != nullptr) plain = combined(plain, sum);
    if (thread == 0)
      nodes.record[at].lse =
          has_meaning ? static_cast<float>(max + log(static_cast<double>(plain) * 0x1p-40)) : NAN;
    const double least =
        row_floor(p.accept_by, p.floor, total, entropy) * static_cast<double>(total);
    const int first = p.node_begin[seq_of(p, at)] + p.first_child[at];
    for (int i = thread; i < n_children; i += kThreads) {
      const int token = p.tokens[first + i];
      const uint64_t w = weight_of((row[token] - max) / p.floor.temperature);
      const bool is_best = p.accept_by == AcceptBy::floor_or_argmax && token == best;
      nodes.record[first + i].token =
          has_meaning && (is_best || static_cast<double>(w) >= least) ? 1 : 0;
    }
    __syncthreads();
  }
}

/// A warp a sequence.
__global__ void __launch_bounds__(kWarp)
    take_longest(const VerifyTreesParams p, const int64_t nodes_begin) {
  cuda::start_after_previous();
  __shared__ int32_t shared[kRoom];
  const Nodes nodes(p, nodes_begin);
  const int b = static_cast<int>(blockIdx.x), lane = lane_of();
  const int begin = p.node_begin[b], n = p.node_begin[b + 1] - begin;
  cuda::NodeLink* const link = nodes.link + begin;
  const auto depth = [&](int node) -> volatile int32_t& {
    return n <= kRoom ? shared[node] : link[node].order;
  };
  for (int i = lane; i < n; i += kWarp) depth(i) = i == 0 ? 0 : -1;
  __syncwarp();
  int end = 0, n_path = 0;
  for (int node = 0; node < n; ++node) {  // parents before their children
    const int here = depth(node);
    if (here > n_path) n_path = here, end = node;
    const int n_children = here < 0 ? 0 : p.n_children[begin + node];
    const int first = n_children > 0 ? p.first_child[begin + node] : 0;
    for (int i = lane; i < n_children; i += kWarp) {
      link[first + i].parent = node;
      if (nodes.record[begin + first + i].token != 0) depth(first + i) = here + 1;
    }
    __syncwarp();
  }
  if (lane == 0) {
    p.n_accepted[b] = n_path;
    p.n_rounded[b] = 0;
    for (int i = n_path - 1, node = end; i >= 0; --i, node = link[node].parent)
      p.path[begin + i] = node;
  }
  if (p.logprobs == nullptr) return;
  __syncwarp();
  for (int i = lane; i < n_path; i += kWarp) {
    const int at = begin + (i > 0 ? p.path[begin + i - 1] : 0);
    const int token = p.tokens[begin + p.path[begin + i]];
    p.logprobs[begin + i] =
        p.target_logits[int64_t{p.target_row[at]} * p.vocab + token] - nodes.record[at].lse;
  }
}

}  // namespace

void find_floor_paths(const VerifyTreesParams& p, Stream stream) {
  const int64_t begin = cuda::nodes_begin(cuda::gpu(), p);
  // As many blocks as are at work at once: how many nodes there are is known on the device.
  cuda::launch(judge_children, static_cast<unsigned>(2 * cuda::gpu().multiprocessors), kThreads,
               stream, p, begin);
  cuda::launch(take_longest, static_cast<unsigned>(p.n_seqs), kWarp, stream, p, begin);
}

}  // namespace tandem
