#pragma once
// The loading warps of few_rows_mma.cuh, and what they hand to the working warps. The body brings
// the way to copy: a class Copies<Shape> with
//   Source                 what the kernel gets of the host for it
//   kWarps                 loading warps, each of which brings a part of every unit
//   kArrivals              of a unit at the barrier that says it is there
//   kLists                 whether it takes calls with lists
//   kRuns                  whether it takes lists of runs, too, not of pages alone
//   bool working(lane)     whether this lane takes part
//   void start(full, unit, row, part, listed)  starts copying a warp's part of a unit of K and V
//                          from row `row` of the pools on, of those of the lists if `listed`, zeros
//                          if it is negative, and the arrivals that end it
//   void start_apart(full, unit, row, part)  with kRuns: the same where keys' rows lie apart, that
//                          of the part's key i in lane i
//   void arrive(full, part)  with kRuns: the arrivals alone
#include "kernels/attention/few_rows_lists.cuh"
#include "kernels/attention/few_rows_state.cuh"
#include "kernels/attention/visibility.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mbarrier.cuh"

namespace tandem {
namespace mma_detail {

/// Position in a ring.
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ void next(int stages, int step = 1) {
    stage += step;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
};

/// A chunk as the loading warp describes it to the others: they keep nothing of the division
/// themselves.
struct Item {
  SeqView v;
  Chunk k;
  int n_queries;
  bool other_queries;  // than the item before
  bool end;            // no chunk follows
};

/// State that the warps of a block share, apart from the ring.
template <class Shape>
struct Mailbox {
  static constexpr int kItems = 8;
  cuda::Barrier full[Shape::kMaxStages], empty[Shape::kMaxStages];
  cuda::Barrier item_full[kItems], item_empty[kItems];
  // Slot of a unit's first key, ~slot if all rows see all its keys; of a unit of a list ~0, or
  // kFewListed less the number of its keys if it has fewer than a unit.
  static constexpr int kFewListed = INT_MIN / 2;
  int first[Shape::kMaxStages];
  Item items[kItems];
};

/// A loading warp. The first takes chunks, describes each and says of every unit what it holds; the
/// others follow its descriptions. All bring parts of the units.
template <class Shape, class Copies>
class Loader {
 public:
  __device__ Loader(const FewRowsCall& call, Mailbox<Shape>& mail, unsigned char* ring, int stages,
                    const Copies& copies, int part)
      : call_(call),
        p_(call.params),
        mail_(mail),
        ring_(ring),
        stages_(stages),
        lane_(static_cast<int>(threadIdx.x) % cuda::kWarp),
        part_(part),
        copies_(copies),
        listed_(call.params),
        lists_(call.params, part) {}

  __device__ void lead() {
    // Until the wait this block may be ahead of any kernel since the last attention of the stream.
    // Keys of committed tokens are older than that: the first ring of them need not wait.
    if (!call_.keys_settled) cuda::wait_for_previous();
    ChunkList chunks(p_, call_.rule);
    int number = static_cast<int>(blockIdx.x), ahead = stages_;
    while (chunks.find(number, v_, k_)) {
      begin();
      number = static_cast<int>(gridDim.x + load(committed_units(ahead)));
      ahead = 0;
    }
    settle();
    // Every chunk was followed by one attempt to take another: was this the last of all?
    const int last = static_cast<int>(gridDim.x) + chunks.count() - 1;
    if (lane_ == 0 && number == last) *call_.taken = 0;
    wait_for_item();
    if (lane_ == 0) {
      mail_.items[item_.stage].end = true;
      mail_.item_full[item_.stage].arrive();
    }
  }

  __device__ void follow() {
    if (!call_.keys_settled) cuda::wait_for_previous();
    for (int ahead = stages_;; ahead = 0) {
      mail_.item_full[item_.stage].wait(item_.parity);
      const Item& item = mail_.items[item_.stage];
      if (item.end) return;
      v_ = item.v;
      k_ = item.k;
      __syncwarp();
      if (lane_ == 0) mail_.item_empty[item_.stage].arrive();
      item_.next(Mailbox<Shape>::kItems);
      begin_pages();
      (void)load(committed_units(ahead));
    }
  }

 private:
  /// Waits for earlier kernels, the first time. The next one's blocks then come where there is
  /// room: not before, since data that it may read before it waits has to be older than this call.
  __device__ static void settle() {
    cuda::wait_for_previous();
    cuda::release_next();
  }
  __device__ void wait_for_item() { mail_.item_empty[item_.stage].wait(item_.parity ^ 1); }

  /// Describes the chunk found, while its first pages are looked up.
  __device__ void begin() {
    begin_pages();
    const int group = call_.rule.group, first_query = k_.tile * Shape::kQueries;
    const int n_queries = min(v_.n_rows * group - first_query, Shape::kQueries);
    row_begin_ = first_query / group;
    row_last_ = (first_query + n_queries - 1) / group;
    wait_for_item();
    if (lane_ == 0) {
      mail_.items[item_.stage] = {
          .v = v_,
          .k = k_,
          .n_queries = n_queries,
          .other_queries = k_.seq != seq_ || k_.kv_head != kv_head_ || k_.tile != tile_,
          .end = false};
      mail_.item_full[item_.stage].arrive();
    }
    seq_ = k_.seq, kv_head_ = k_.kv_head, tile_ = k_.tile;
    item_.next(Mailbox<Shape>::kItems);
  }

  __device__ int n_units() const { return (k_.end - k_.begin) * Shape::kUnits; }
  /// Whether page i of the sequence's, or a unit of the chunk, holds keys of a list.
  __device__ bool listed_page(int i) const { return Copies::kLists && i < v_.pages.listed; }
  __device__ bool of_list(int unit) const { return listed_page(k_.begin + unit / Shape::kUnits); }
  /// Whether lists are of runs.
  __device__ bool of_runs() const { return Copies::kRuns && !p_.lists.paged(); }
  /// Slot of the first key of a unit of pages.
  __device__ int slot_of(int unit) const {
    return v_.pages.page(k_.begin + unit / Shape::kUnits) * kPageTokens +
           unit % Shape::kUnits * Shape::kKeys;
  }
  /// How many units at the chunk's beginning hold keys of committed tokens alone, up to `most`.
  __device__ int committed_units(int most) const {
    int n = 0;
    while (n < min(most, n_units()) && (of_list(n) || slot_of(n) + Shape::kKeys <= v_.base)) ++n;
    return n;
  }

  /// This lane's page of the 32 from the sequence's page `first` on.
  __device__ int page_of(int first) const {
    const int i = first + lane_;
    if (i >= k_.end) return 0;
    if (listed_page(i)) return of_runs() ? 0 : listed_.page(i);
    return pages_of(p_, k_.seq)[v_.pages.page(i)];
  }
  /// Asks for the chunk's first pages.
  __device__ void begin_pages() {
    if (listed_page(k_.begin) && !of_runs()) listed_.begin(table_row(p_, k_.seq), k_.kv_head);
    next_pages_ = page_of(k_.begin);
  }

  /// Brings the chunk's units, the first `ahead` of them without waiting for earlier kernels. Takes
  /// the next chunk meanwhile: its number less the grid's blocks.
  __device__ unsigned load(int ahead) {
    unsigned taken = 0;
    if (of_list(0) && of_runs()) lists_.begin(k_, k_.begin * Shape::kUnits);
#pragma unroll 1
    for (int unit = 0;; ++unit) {
      if (unit == ahead) {
        settle();
        if (part_ == 0 && lane_ == 0) taken = atomicAdd(call_.taken, 1);
      }
      if (unit == n_units()) break;
      const int i = unit / Shape::kUnits;
      if (unit % (Shape::kUnits * cuda::kWarp) == 0) {
        pages_ = next_pages_;
        next_pages_ = page_of(k_.begin + i + cuda::kWarp);
      }
      if (of_list(unit) && of_runs()) {
        bring_run();
        at_.next(stages_);
        continue;
      }
      const int page = __shfl_sync(cuda::kAllLanes, pages_, i % cuda::kWarp);
      // A released page becomes zeros.
      const int row = page < 0 ? -kPageTokens : (page * p_.n_kv_heads + k_.kv_head) * kPageTokens;
      if (copies_.working(lane_)) bring(row + unit % Shape::kUnits * Shape::kKeys, unit);
      at_.next(stages_);
    }
    return __shfl_sync(cuda::kAllLanes, taken, 0);
  }

  /// What the mailbox says of a unit of pages.
  __device__ int first_of(int unit) const {
    if (of_list(unit))
      return first_of_listed(listed_.left((k_.begin * Shape::kUnits + unit) * Shape::kKeys));
    const int first = slot_of(unit);
    return all_visible(p_, v_, row_begin_, row_last_, first, Shape::kKeys) ? ~first : first;
  }
  /// The same of a unit with `left` keys of a list from its first on.
  __device__ int first_of_listed(int left) const {
    return left >= Shape::kKeys ? ~0 : mail_.kFewListed - max(left, 0);
  }

  __device__ void bring(int row, int unit) {
    const int first = part_ == 0 ? first_of(unit) : 0;
    mail_.empty[at_.stage].wait(at_.parity ^ 1);
    if (part_ == 0 && lane_ == 0) mail_.first[at_.stage] = first;
    copies_.start(mail_.full[at_.stage], ring_ + at_.stage * 2 * Shape::kUnitBytes, row, part_,
                  of_list(unit));
  }

  /// The next unit of the chunk's list of runs. Lists of other KV heads may be longer: then it is
  /// empty.
  __device__ void bring_run() {
    if constexpr (Copies::kRuns) {
      const int left = lists_.left(), row = lists_.row();
      lists_.next();
      cuda::Barrier& full = mail_.full[at_.stage];
      mail_.empty[at_.stage].wait(at_.parity ^ 1);
      if (part_ == 0 && lane_ == 0) mail_.first[at_.stage] = first_of_listed(left);
      if (left <= 0)
        copies_.arrive(full, part_);
      else
        copies_.start_apart(full, ring_ + at_.stage * 2 * Shape::kUnitBytes, row, part_);
    }
  }

  const FewRowsCall& call_;
  const AttentionParams& p_;
  Mailbox<Shape>& mail_;
  unsigned char* ring_;
  int stages_, lane_, part_;
  Copies copies_;
  ListedPages listed_;
  ListedRows<Shape::kKeys, Shape::kKeys / (Copies::kRuns ? Copies::kWarps : 4)> lists_;
  SeqView v_;
  Chunk k_;
  int pages_ = 0, next_pages_ = 0;  // this lane's of 32 pages of the chunk, and of the next 32
  int seq_ = -1, kv_head_ = 0, tile_ = 0, row_begin_ = 0, row_last_ = 0;
  RingPlace at_, item_;
};

}  // namespace mma_detail
}  // namespace tandem
