#pragma once
// The runners of a row with the smallest keys, in order, found by the blocks of a group. A runner
// has an order in f32 that nearly separates the keys, kept in place of its logit, and an exact key
// that costs more to make. Runners brings
//   int32_t name(id, i)      what stands for runner i of this block, in the order of ids
//   int32_t id(name)
//   uint64_t key(name)       the exact key; of equal ones the lower id comes first
//   float latest(order)      the largest order that a runner of no larger key can have
#include "kernels/sample/row_group.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

struct alignas(16) LeadersShared {
  static constexpr int kFew = 1024;

  float least[kRowThreads];  // order of any runner of a thread, or of a few threads
  // Runners of this block that may be among the wanted ones, published; in the first block then
  // those of all.
  struct Few {
    int n;
    int32_t name[kFew];
  } few;
  uint64_t key[kFew];
};

template <class Runners>
class Leaders {
 public:
  __device__ Leaders(RowGroup& row, LeadersShared& shared, const Runners& runners)
      : row_(row), shared_(shared), runners_(runners) {
    if (threadIdx.x == 0) shared.few.n = 0;  // others see it after bound()
  }

  /// Writes the ids of the `wanted` smallest keys. least: the smallest order of this thread's
  /// runners, infinity without any.
  __device__ void write(int32_t* ids, int wanted, float least) {
    const float bar = bound(wanted, least);
    for (int i = static_cast<int>(threadIdx.x); i < row_.size(); i += kRowThreads) {
      if (!(row_.logit(i) <= bar)) continue;
      const int at = atomicAdd(&shared_.few.n, 1);
      if (at < LeadersShared::kFew) shared_.few.name[at] = runners_.name(row_.first() + i, i);
    }
    row_.publish(shared_.few);
    row_.sync();
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int theirs = lane < row_.parts() ? row_.peer(&shared_.few, lane)->n : 0;
    const int n = __reduce_add_sync(kAllLanes, theirs);
    if (n > LeadersShared::kFew)
      write_one_by_one(ids, wanted);
    else if (row_.rank() == 0)
      write_of_few(ids, wanted, n, theirs);
  }

 private:
  /// An order that no wanted runner exceeds, since that many are known up to it. `alone`: in one
  /// block, as many groups of threads have a runner up to there. `together`: in every block, its
  /// share of as many have. The first is the smaller where the best runners are in one block, the
  /// second where they are spread.
  __device__ float bound(int wanted, float least) {
    // Groups of threads: fewer to compare with each other, while most of them hold at most one.
    const int size = wanted <= 32 ? 8 : wanted <= 128 ? 2 : 1, n = kRowThreads / size;
    const int thread = static_cast<int>(threadIdx.x), group = thread / size;
    for (int step = 1; step < size; step *= 2)
      least = fminf(least, __shfl_xor_sync(kAllLanes, least, step));
    if (thread % size == 0) shared_.least[group] = least;
    __syncthreads();
    const int share = n / size, begin = thread % size * share;
    int before = 0;
#pragma unroll 8
    for (int j = begin; j < begin + share; ++j) {
      const float x = shared_.least[j];
      before += x < least || (x == least && j < group);
    }
    for (int step = 1; step < size; step *= 2) before += __shfl_xor_sync(kAllLanes, before, step);
    const int each = (wanted + row_.parts() - 1) / row_.parts();
    // Complements, since the best is the largest; key 0 stands for no such group in the block.
    const uint32_t key = order_key(least);
    Best bounds[2] = {{before == wanted - 1 ? ~key : 0, 0},
                      {before == each - 1 ? key
                       : each > n         ? kKeyPlusInf
                                          : 0,
                       0}};
    row_.bests(bounds);
    const uint32_t alone = ~bounds[0].key, together = bounds[1].key;
    const uint32_t smaller = alone < together ? alone : together;
    return runners_.latest(Best{smaller < kKeyPlusInf ? smaller : kKeyPlusInf, 0}.logit());
  }

  __device__ static bool comes_before(uint64_t key, int32_t name, uint64_t other,
                                      int32_t other_name) {
    return key < other || (key == other && name < other_name);
  }

  /// All that may be wanted, n of them and `theirs` in block `lane`, are compared with each other.
  __device__ void write_of_few(int32_t* ids, int wanted, int n, int theirs) {
    for (int begin = 0; begin < n; begin += kRowThreads) {
      const int i = begin + static_cast<int>(threadIdx.x);
      int block = 0, at = i;  // the first block's own stay where they are
      for (int b = 0; b < row_.parts(); ++b) {
        const int here = __shfl_sync(kAllLanes, theirs, b);
        if (block != b || at < here) continue;
        at -= here;
        ++block;
      }
      if (i >= n) continue;
      if (block > 0) shared_.few.name[i] = row_.peer(&shared_.few, block)->name[at];
      shared_.key[i] = runners_.key(shared_.few.name[i]);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kRowThreads) {
      const uint64_t key = shared_.key[i];
      const int32_t name = shared_.few.name[i];
      int before = 0;
#pragma unroll 4
      for (int j = 0; j < n; ++j)
        before += comes_before(shared_.key[j], shared_.few.name[j], key, name);
      if (before < wanted) ids[before] = runners_.id(name);
    }
  }

  /// Any number of runners: the first that comes after the one before, again and again.
  __device__ void write_one_by_one(int32_t* ids, int wanted) {
    constexpr uint64_t kNoKey = ~uint64_t{0};
    const auto max_of_warp = [](uint64_t x) {
      for (int step = kWarp / 2; step > 0; step /= 2) {
        const uint64_t other = __shfl_xor_sync(kAllLanes, x, step);
        x = other > x ? other : x;
      }
      return x;
    };
    uint64_t last_key = 0;
    int32_t last_name = -1;
    for (int place = 0; place < wanted; ++place) {
      uint64_t key = kNoKey;
      int32_t name = 0x7fffffff;
      float bar = __int_as_float(0x7f800000);
      for (int i = static_cast<int>(threadIdx.x); i < row_.size(); i += kRowThreads) {
        const float order = row_.logit(i);
        if (!(order <= bar)) continue;
        const int32_t mine = runners_.name(row_.first() + i, i);
        const uint64_t k = runners_.key(mine);
        if (!comes_before(last_key, last_name, k, mine) || !comes_before(k, mine, key, name))
          continue;
        key = k;
        name = mine;
        bar = runners_.latest(order);
      }
      uint64_t best_key[1] = {~key};
      row_.combine(best_key, max_of_warp);
      last_key = ~best_key[0];
      uint64_t best[1] = {key == last_key ? ~static_cast<uint32_t>(name) : 0};
      row_.combine(best, max_of_warp);
      last_name = static_cast<int32_t>(~static_cast<uint32_t>(best[0]));
      if (row_.rank() == 0 && threadIdx.x == 0) ids[place] = runners_.id(last_name);
    }
  }

  RowGroup& row_;
  LeadersShared& shared_;
  const Runners& runners_;
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
