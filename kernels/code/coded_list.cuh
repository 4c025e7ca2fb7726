#pragma once
// One list of a choice by key codes: its sequence and head, its index, and its scratch.
#include "kernels/code/choose_coded.h"
#include "kernels/gather/list_rows.cuh"

namespace tandem::coded {

inline constexpr int kQuad = 4;  // queries of a warp: heads of one KV head
inline constexpr int kMostDims = 256;

/// Quads of the heads of a row.
inline int quads_of(const ChooseCodedParams& p) {
  return p.n_kv_heads * ((p.n_heads / p.n_kv_heads + kQuad - 1) / kQuad);
}
/// The heads of one KV head that a warp's tiles serve.
struct Quad {
  int first, n;
  __device__ Quad(const ChooseCodedParams& p, int number) {
    const int group = p.n_heads / p.n_kv_heads, quads = (group + kQuad - 1) / kQuad;
    first = number / quads * group + number % quads * kQuad;
    n = min(kQuad, group - number % quads * kQuad);
  }
};

/// One list's sequence and head, and its index.
struct CodedList {
  int row, head, kv_head, slot = -1, n = 0;  // n: indexed keys; none without a slot
  int64_t local;                             // number of the list

  __device__ CodedList(const ChooseCodedParams& p, int local_row, int h)
      : row(p.first_row + local_row),
        head(h),
        kv_head(h / (p.n_heads / p.n_kv_heads)),
        local(int64_t{local_row} * p.n_heads + h),
        groups_(p.codes.groups + kv_head * p.codes.group_head_stride),
        low_(p.codes.low + kv_head * p.codes.low_head_stride) {
    if (row >= p.row_begin[p.n_seqs]) return;
    slot = p.slot[sequence_of(p.row_begin, p.n_seqs, row)];
    n = p.ends[slot] - p.begin;
    blocks_ = p.blocks + int64_t{slot} * p.max_blocks;
  }
  /// Number of the list of a KV head whose heads share it.
  __device__ int64_t set(const ChooseCodedParams& p) const {
    return int64_t{row - p.first_row} * p.n_kv_heads + kv_head;
  }
  __device__ int wanted(const ChooseCodedParams& p) const {
    return min(n, max(p.least_exact, static_cast<int>(llround(p.exact * n))));
  }
  __device__ int candidates(const ChooseCodedParams& p) const {
    return min(n, max(2 * wanted(p), static_cast<int>(llround(p.refine * n))));
  }
  /// The group that holds an indexed key.
  __device__ const uint8_t* group(const ChooseCodedParams& p, int key) const {
    const DeviceCodes& c = p.codes;
    return groups_ + blocks_[key >> c.block_shift] * c.group_block_stride +
           in_block(c, key) / kCodeKeys * static_cast<unsigned>(code_group_bytes(c.dims));
  }
  /// The clusters of an indexed key and those that follow in its block.
  __device__ const uint8_t* clusters(const ChooseCodedParams& p, int key) const {
    const DeviceClusters& c = p.clusters;
    return c.ids + kv_head * c.id_head_stride +
           blocks_[key >> p.codes.block_shift] * c.id_block_stride + in_block(p.codes, key);
  }
  __device__ const uint8_t* low(const ChooseCodedParams& p, int key) const {
    const DeviceCodes& c = p.codes;
    return low_ + blocks_[key >> c.block_shift] * c.low_block_stride +
           in_block(c, key) * static_cast<unsigned>(code_low_bytes(c.dims, c.bits));
  }

 private:
  __device__ static unsigned in_block(const DeviceCodes& c, int key) {
    return static_cast<unsigned>(key & ((1 << c.block_shift) - 1));
  }

  const uint8_t *groups_, *low_;  // of the KV head
  const int32_t* blocks_ = nullptr;
};

/// What a scan keeps of a list, or of a set that heads share.
struct ListRegions {
  KeptKey* scanned;
  int32_t* counts;
  uint32_t *orders, *keys;

  /// number    of the list or set
  __device__ ListRegions(const ChooseCodedParams& p, int64_t number)
      : scanned(p.scratch.scanned + number * p.scratch.key_stride),
        counts(p.scratch.counts + number * p.scratch.region_stride),
        orders(p.scratch.orders + number * p.scratch.key_stride),
        keys(p.scratch.keys + number * p.scratch.key_stride) {}
};
/// The masses of a list.
__device__ inline float* masses_of(const ChooseCodedParams& p, int64_t list) {
  return p.masses == nullptr ? nullptr : p.masses + list * p.mass_stride;
}
/// The scores of a set's scanned keys.
__device__ inline float* scores_of(const ChooseCodedParams& p, int64_t set, int heads) {
  return p.scratch.group_scores + set * p.scratch.key_stride * shared_scores(heads);
}

}  // namespace tandem::coded
