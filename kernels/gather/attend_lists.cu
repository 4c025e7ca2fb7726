// Keys of a list lie anywhere: a group of lanes reads one row of the pools at a time, 16 bytes a
// lane, several rows ahead, and keeps a separate softmax state. A block's groups join at the end.
// Rows of bf16 that fit have another body (attend_lists_mma.cu).
#include "kernels/cuda/launch.cuh"
#include "kernels/gather/list_state.cuh"
#include "kernels/gather/row_shape.cuh"

namespace tandem {
namespace {

constexpr int kAhead = 4;  // keys whose rows a group reads at once
constexpr int kJoinThreads = 128;

/// The softmax state of a query over some keys: a lane holds its elements of o.
template <int kOwn>
struct State {
  float m = -INFINITY, l = 0, o[kOwn] = {};  // m in units of log2

  __device__ void grow(float most) {
    if (most <= m) return;
    const float shrink = exp2f(m - most);
    m = most;
    l *= shrink;
#pragma unroll
    for (float& x : o) x *= shrink;
  }
};

/// Attention of a head to n keys.
template <class S>
__device__ void attend(const AttendListsParams& p, const ListOf& list, int head, int n,
                       const int* rows, const ListWeights& weights, State<S::kOwn>& state) {
  using T = typename S::Number;
  float q[S::kOwn];
  typename S::Pack x[S::kPacks];
  S::load(static_cast<const T*>(p.q) + (int64_t{list.row} * p.n_heads + head) * p.d, p.d, x);
#pragma unroll
  for (int i = 0; i < S::kOwn; ++i)
    q[i] = cuda::to_float(x[i / S::kSize].at[i % S::kSize]) * (p.scale * kLog2E);
  const float unscale = 1.0f / (p.scale * kLog2E);
#pragma unroll 1
  for (int begin = 0; begin < n; begin += S::kGroups * kAhead) {
    const int first = begin + S::group();  // as many turns for all: they share shuffles
    typename S::Pack k[kAhead][S::kPacks], v[kAhead][S::kPacks];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int at = min(first + a * S::kGroups, n - 1);
      const int64_t row = int64_t{rows[at]} * p.d;
      S::load(static_cast<const T*>(p.k_pool) + row, p.d, k[a]);
      S::load(static_cast<const T*>(p.v_pool) + row, p.d, v[a]);
    }
    float score[kAhead], most = state.m;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < S::kOwn; ++i)
        dot = fmaf(q[i], cuda::to_float(k[a][i / S::kSize].at[i % S::kSize]), dot);
      dot = S::sum(dot);
      const int at = first + a * S::kGroups;
      score[a] =
          at < n ? fmaf(weights.at(p.lists.weights, at, dot * unscale), kLog2E, dot) : -INFINITY;
      most = fmaxf(most, score[a]);
    }
    state.grow(most);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const float weight = state.m == -INFINITY ? 0.0f : exp2f(score[a] - state.m);
      state.l += weight;
#pragma unroll
      for (int i = 0; i < S::kOwn; ++i)
        state.o[i] = fmaf(weight, cuda::to_float(v[a][i / S::kSize].at[i % S::kSize]), state.o[i]);
    }
  }
}

/// Joins the states of the block's groups.
template <class S>
__device__ void write_part(const AttendListsParams& p, int part, int row, int head,
                           const State<S::kOwn>& state, bool has_sign, float* shared) {
  float* const m = shared;
  float* const l = m + S::kGroups;
  float* const o = l + S::kGroups;
  __syncthreads();
  if (S::lane() == 0) m[S::group()] = state.m, l[S::group()] = state.l;
#pragma unroll
  for (int i = 0; i < S::kOwn; ++i) {
    const int c = S::element(i / S::kSize) + i % S::kSize;
    if (c < p.d) o[S::group() * p.d + c] = state.o[i];
  }
  __syncthreads();
  write_joined(p, part, row, head, has_sign, {m, l, o, S::kGroups, 1, p.d});
}

/// The tail of a row and head: means by mass.
template <class S>
__device__ void attend_tail(const AttendListsParams& p, const ListOf& list, int64_t number,
                            State<S::kOwn>& state) {
  const TailRuns runs(p, list);
  const float* masses = p.tails.masses + number * p.tails.mass_stride;
  state.m = p.tails.origin[number] * kLog2E;
#pragma unroll 4
  for (int run = S::group(); run < runs.n; run += S::kGroups) {
    const __nv_bfloat16* mean = runs.mean(run);
    const float mass = masses[run];
    state.l += mass;
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      const int c = S::element(i / S::kSize) + i % S::kSize;
      if (c < p.d) state.o[i] = fmaf(mass, cuda::to_float(mean[c]), state.o[i]);
    }
  }
}

/// Block (x, y): part x of the keys of list y, of which none has more than `split`; after the parts
/// come the tails of its heads.
template <class S>
__global__ void __launch_bounds__(S::kThreads)
    attend_lists(const AttendListsParams p, int parts, int split) {
  extern __shared__ float shared[];
  cuda::start_after_previous();
  const int64_t number = blockIdx.y;
  const int part = static_cast<int>(blockIdx.x);
  const ListOf list(p, p.rows.begin * (p.n_heads / p.lists.heads) + static_cast<int>(number));
  if (const int h = part - parts; h >= 0) {
    State<S::kOwn> state;
    if (list.exists()) attend_tail<S>(p, list, number * p.lists.heads + h, state);
    write_part<S>(p, parts, list.row, list.head + h, state, p.tails.corrected, shared);
    return;
  }
  const ListShare share(list.exists() ? p.lists.count[number] : 0, part, parts, split);
  // After what a join takes.
  int* const rows = reinterpret_cast<int*>(shared + S::kGroups * (p.d + 2));
  const int32_t* ids = p.lists.ids + number * p.lists.stride + share.begin;
  for (int i = static_cast<int>(threadIdx.x); i < share.n; i += S::kThreads)
    rows[i] = list.pool_row(p, ids[i]);
  __syncthreads();
  const ListWeights weights(p.lists, number, share.begin);
#pragma unroll 1
  for (int h = 0; h < p.lists.heads; ++h) {
    State<S::kOwn> state;
    if (share.n > 0) attend<S>(p, list, list.head + h, share.n, rows, weights, state);
    write_part<S>(p, part, list.row, list.head + h, state, false, shared);
  }
}

/// Block (list, head of it): joins the list's `parts` states and its tail with a sign, the state
/// after them, into the first.
__global__ void __launch_bounds__(kJoinThreads) join_tails(const AttendListsParams p, int parts) {
  cuda::start_after_previous();
  const int64_t number = blockIdx.x, cells = int64_t{p.n_rows} * p.n_heads;
  const ListOf list(p, p.rows.begin * (p.n_heads / p.lists.heads) + static_cast<int>(number));
  const int64_t cell = int64_t{list.row} * p.n_heads + list.head + blockIdx.y;
  const float origin =
      list.exists() ? p.tails.origin[number * p.lists.heads + blockIdx.y] : -INFINITY;
  float top = origin, of_list = 0;
  for (int part = 0; part < parts; ++part) top = fmaxf(top, p.lse[part * cells + cell]);
  const float base = top > -INFINITY ? top : 0.0f;
  for (int part = 0; part < parts; ++part) of_list += expf(p.lse[part * cells + cell] - base);
  const float of_tail = expf(origin - base),
              with_tail = of_list + of_tail * p.lse[parts * cells + cell];
  const bool adds = with_tail > 1e-3f * of_list && with_tail > 0;
  const float total = adds ? with_tail : of_list;
  for (int c = static_cast<int>(threadIdx.x); c < p.d; c += kJoinThreads) {
    float x = adds ? of_tail * p.o[(parts * cells + cell) * p.d + c] : 0.0f;
    for (int part = 0; part < parts; ++part) {
      const int64_t at = part * cells + cell;
      x = fmaf(expf(p.lse[at] - base), p.o[at * p.d + c], x);
    }
    p.o[cell * p.d + c] = total > 0 ? x / total : 0.0f;
  }
  __syncthreads();
  for (int part = static_cast<int>(threadIdx.x); part <= parts; part += kJoinThreads)
    p.lse[part * cells + cell] = part == 0 && total > 0 ? base + logf(total) : -INFINITY;
}

void attend_any(const AttendListsParams& p, int parts, int split, Stream stream) {
  with_row_shape(p.dtype, p.d, [&](auto shape) {
    using S = decltype(shape);
    const int tails = p.tails.masses != nullptr ? p.lists.heads : 0;
    const size_t bytes = sizeof(float) * static_cast<size_t>(S::kGroups * (p.d + 2)) +
                         sizeof(int) * static_cast<size_t>(split);
    const auto kernel = attend_lists<S>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
    cuda::launch(kernel, dim3(static_cast<unsigned>(parts + tails), lists_of(p)), S::kThreads,
                 bytes, 1, stream, p, parts, split);
  });
}

}  // namespace

void attend_lists_cuda(const AttendListsParams& p, Stream stream) {
  if (p.rows.end == p.rows.begin) return;
  const int split = attend_lists_split(p.lists.most);
  const int parts = attend_lists_parts(p.lists.most, false);
  (attend_lists_mma_takes(p) ? attend_lists_mma : attend_any)(p, parts, split, stream);
  if (p.tails.masses != nullptr && p.tails.corrected)
    cuda::launch(join_tails, dim3(lists_of(p), static_cast<unsigned>(p.lists.heads)), kJoinThreads,
                 stream, p, parts);
}

}  // namespace tandem
