// Keys of a list lie anywhere: a group of lanes reads one row of the pools at a time, 16 bytes a
// lane, several rows ahead, and keeps a separate softmax state. A block's groups join at the end.
#include "base/log2.h"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/gather/attend_lists.h"
#include "kernels/gather/list_rows.cuh"
#include "kernels/gather/row_shape.cuh"

namespace tandem {
namespace {

constexpr int kAhead = 4;         // keys whose rows a group reads at once
constexpr int kLeastShare = 128;  // keys of a list that are worth a block
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

/// The log of the probability that a key is in its list.
__device__ float log_u_at(const CollisionWeights& w, float2 query, float dot, float norm) {
  if (norm < 0) return 0;
  const float product = query.x * norm;
  const float c = product == 0 ? 0.0f : fminf(fmaxf((dot - query.y) / product, -1.0f), 1.0f);
  const float x = (c + 1) * 0.5f * static_cast<float>(w.log_u_intervals);
  const int i = min(static_cast<int>(x), w.log_u_intervals - 1);
  return w.log_u[i] + (x - static_cast<float>(i)) * (w.log_u[i + 1] - w.log_u[i]);
}

/// What keys of a list count in addition to their scores.
struct Weights {
  const float *bias, *norms;  // of the keys at hand; null: none
  float2 query = {};

  __device__ Weights(const QueryLists& lists, int64_t list, int begin)
      : bias(lists.bias == nullptr ? nullptr : lists.bias + list * lists.stride + begin),
        norms(lists.weights.norms == nullptr ? nullptr
                                             : lists.weights.norms + list * lists.stride + begin) {
    if (norms != nullptr) query = reinterpret_cast<const float2*>(lists.weights.queries)[list];
  }
  /// dot    q.k without the scale
  __device__ float at(const CollisionWeights& w, int i, float dot) const {
    float x = bias == nullptr ? 0.0f : bias[i];
    if (norms != nullptr) x -= log_u_at(w, query, dot, norms[i]);
    return x;
  }
};

/// Attention of heads [first, first + n_heads) to n keys, each row of which is read once. States
/// beyond n_heads get the last head's.
template <class S, int kHeads>
__device__ void attend(const AttendListsParams& p, const ListOf& list, int first_head, int n_heads,
                       int n, const int* rows, const Weights& weights,
                       State<S::kOwn> (&state)[kHeads]) {
  using T = typename S::Number;
  float q[kHeads][S::kOwn];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    typename S::Pack x[S::kPacks];
    const int head = first_head + min(h, n_heads - 1);
    S::load(static_cast<const T*>(p.q) + (int64_t{list.row} * p.n_heads + head) * p.d, p.d, x);
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i)
      q[h][i] = cuda::to_float(x[i / S::kSize].at[i % S::kSize]) * (p.scale * kLog2E);
  }
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
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score[kAhead], most = state[h].m;
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i)
          dot = fmaf(q[h][i], cuda::to_float(k[a][i / S::kSize].at[i % S::kSize]), dot);
        dot = S::sum(dot);
        const int at = first + a * S::kGroups;
        score[a] =
            at < n ? fmaf(weights.at(p.lists.weights, at, dot * unscale), kLog2E, dot) : -INFINITY;
        most = fmaxf(most, score[a]);
      }
      state[h].grow(most);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const float weight = state[h].m == -INFINITY ? 0.0f : exp2f(score[a] - state[h].m);
        state[h].l += weight;
#pragma unroll
        for (int i = 0; i < S::kOwn; ++i)
          state[h].o[i] =
              fmaf(weight, cuda::to_float(v[a][i / S::kSize].at[i % S::kSize]), state[h].o[i]);
      }
    }
  }
}

/// The joined state of the block's groups becomes part `part` of the result; one with a sign its
/// sums, relative to exp2(m), until it is joined to others.
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
  float most = -INFINITY, sum = 0;
  for (int g = 0; g < S::kGroups; ++g) most = fmaxf(most, m[g]);
  const float base = most == -INFINITY ? 0.0f : most;
  for (int g = 0; g < S::kGroups; ++g) sum += l[g] * exp2f(m[g] - base);
  const int64_t at = (int64_t{part} * p.n_rows + row) * p.n_heads + head;
  for (int c = static_cast<int>(threadIdx.x); c < p.d; c += S::kThreads) {
    float x = 0;
    for (int g = 0; g < S::kGroups; ++g) x = fmaf(exp2f(m[g] - base), o[g * p.d + c], x);
    p.o[at * p.d + c] = has_sign ? x : sum > 0 ? x / sum : 0.0f;
  }
  if (threadIdx.x == 0)
    p.lse[at] = has_sign ? sum : sum > 0 ? (most + log2f(sum)) * kLn2 : -INFINITY;
}

/// The tail of a row and head: means by mass.
template <class S>
__device__ void attend_tail(const AttendListsParams& p, const ListOf& list, int64_t number,
                            State<S::kOwn>& state) {
  const ListTails& t = p.tails;
  const int n_runs = (t.ends[list.slot] - t.begin + kMeanKeys - 1) / kMeanKeys;
  const float* masses = t.masses + number * t.mass_stride;
  state.m = t.origin[number] * kLog2E;
#pragma unroll 4
  for (int run = S::group(); run < n_runs; run += S::kGroups) {
    const int block = t.blocks[int64_t{list.slot} * t.max_blocks + run / t.block_runs];
    const auto* mean = reinterpret_cast<const __nv_bfloat16*>(t.means) + block * t.block_stride +
                       list.kv_head * t.head_stride + int64_t{run % t.block_runs} * p.d;
    const float mass = masses[run];
    state.l += mass;
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      const int c = S::element(i / S::kSize) + i % S::kSize;
      if (c < p.d) state.o[i] = fmaf(mass, cuda::to_float(mean[c]), state.o[i]);
    }
  }
}

constexpr int kMostHeads = 4;  // that read a row together

/// Block (x, y): part x of the keys of list y, of which none has more than `split`, for kHeads of
/// its heads at a time; after the parts come the tails of its heads.
template <class S, int kHeads>
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
  const int count = list.exists() ? p.lists.count[number] : 0;
  // Short lists of a long `most` are divided among all parts, too.
  const int share = min(max((count + parts - 1) / parts, kLeastShare), split);
  const int begin = part * share, n = min(count - begin, share);
  // After what a join takes.
  int* const rows = reinterpret_cast<int*>(shared + S::kGroups * (p.d + 2));
  const int32_t* ids = p.lists.ids + number * p.lists.stride + begin;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += S::kThreads)
    rows[i] = list.pool_row(p, ids[i]);
  __syncthreads();
  const Weights weights(p.lists, number, begin);
#pragma unroll 1
  for (int first = 0; first < p.lists.heads; first += kHeads) {
    State<S::kOwn> state[kHeads];
    const int heads = min(kHeads, p.lists.heads - first);
    if (n > 0) attend<S>(p, list, list.head + first, heads, n, rows, weights, state);
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (h < heads)
        write_part<S>(p, part, list.row, list.head + first + h, state[h], false, shared);
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

template <class S, int kHeads>
void launch(const AttendListsParams& p, Stream stream) {
  const int split = attend_lists_split(p.lists.most);
  const int parts = attend_lists_parts(p.lists.most, false);
  const int tails = p.tails.masses != nullptr ? p.lists.heads : 0;
  const auto lists =
      static_cast<unsigned>((p.rows.end - p.rows.begin) * (p.n_heads / p.lists.heads));
  const size_t bytes = sizeof(float) * static_cast<size_t>(S::kGroups * (p.d + 2)) +
                       sizeof(int) * static_cast<size_t>(split);
  const auto kernel = attend_lists<S, kHeads>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(kernel, dim3(static_cast<unsigned>(parts + tails), lists), S::kThreads, bytes, 1,
               stream, p, parts, split);
  if (p.tails.masses != nullptr && p.tails.corrected)
    cuda::launch(join_tails, dim3(lists, static_cast<unsigned>(p.lists.heads)), kJoinThreads,
                 stream, p, parts);
}

}  // namespace

void attend_lists_cuda(const AttendListsParams& p, Stream stream) {
  if (p.rows.end == p.rows.begin) return;
  with_row_shape(p.dtype, p.d, [&](auto shape) {
    using S = decltype(shape);
    p.lists.heads == 1 ? launch<S, 1>(p, stream) : launch<S, kMostHeads>(p, stream);
  });
}

}  // namespace tandem
