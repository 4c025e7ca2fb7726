#pragma once
// Where the keys of a list lie, for the loading warps of few_rows_loader.cuh: runs of the
// sequence's tokens, or pages of the lists' pools.
#include "kernels/attention/few_rows_split.cuh"

namespace tandem::mma_detail {

/// Pages that hold the copied keys of the lists.
class ListedPages {
 public:
  __device__ explicit ListedPages(const AttentionParams& p) : lists_(p.lists) {}

  /// Turns to the list of a row of the page table and a KV head.
  __device__ void begin(int row, int kv_head) {
    list_ = list_of(lists_, row, kv_head);
    tokens_ = listed_tokens(lists_, row, kv_head);
  }
  /// Page i of the list; -1 past its end.
  __device__ int page(int i) const { return i * kPageTokens < tokens_ ? list_[i] : -1; }
  /// Tokens of the list from its token `first` on; negative past its end.
  __device__ int left(int first) const { return tokens_ - first; }

 private:
  const KeyLists& lists_;
  const int32_t* list_ = nullptr;
  int tokens_ = 0;
};

/// Rows of the pools that hold a loading warp's keys of the units of a list: those numbered
/// [part * kPart, (part + 1) * kPart) of every kKeys. An id, the page that it names and the key
/// itself are three loads that wait for each other: ids come two units ahead, their pages one.
template <int kKeys, int kPart>
class ListedRows {
  static_assert(cuda::kWarp % kPart == 0);

 public:
  __device__ ListedRows(const AttentionParams& p, int part)
      : p_(p), first_(part * kPart + static_cast<int>(threadIdx.x) % kPart) {}

  /// Turns to the list of a chunk, at its unit of this number.
  __device__ void begin(const Chunk& k, int unit) {
    const int row = table_row(p_, k.seq);
    list_ = list_of(p_.lists, row, k.kv_head);
    table_ = p_.page_table + static_cast<int64_t>(row) * p_.max_pages;
    left_ = listed_tokens(p_.lists, row, k.kv_head) - unit * kKeys;
    kv_head_ = k.kv_head;
    at_ = unit * kKeys + first_;
    run_shift_ = __ffs(p_.lists.run) - 1;
    look_up_id(left_);
    look_up_page();
    look_up_id(left_ - kKeys);
  }
  /// Keys of the list from the unit on; negative past its end. Not clamped to [0, kKeys]: compiled
  /// by CUDA 13.0, comparisons of the clamped number with kKeys took a list's last unit for a full
  /// one (seen on an H200; the cause was not found).
  __device__ int left() const { return left_; }
  /// The row of key lane % kPart of the warp's in the unit, -1 past the list's end.
  __device__ int row() const {
    return page_ < 0 ? -1 : (page_ * p_.n_kv_heads + kv_head_) * kPageTokens + in_page_;
  }
  /// Turns to the next unit.
  __device__ void next() {
    left_ -= kKeys;
    look_up_page();
    look_up_id(left_ - kKeys);
  }

 private:
  /// The id of the unit that `left` keys of the list are left for.
  __device__ void look_up_id(int left) {
    const int in_run = at_ & (p_.lists.run - 1);
    token_ = first_ < left ? (list_[at_ >> run_shift_] << run_shift_) + in_run : -1;
    at_ += kKeys;
  }
  __device__ void look_up_page() {
    page_ = token_ < 0 ? -1 : table_[token_ / kPageTokens];
    in_page_ = token_ % kPageTokens;
  }

  const AttentionParams& p_;
  int first_;  // this lane's key of a unit
  const int32_t *list_ = nullptr, *table_ = nullptr;
  int left_ = 0, kv_head_ = 0, run_shift_ = 0;  // left: keys from the unit on
  int at_ = 0;                                  // this lane's first key whose id was not asked for
  int token_ = 0;                               // of the next unit
  int page_ = 0, in_page_ = 0;                  // of the unit
};

}  // namespace tandem::mma_detail
