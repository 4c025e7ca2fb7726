#pragma once
// The choice of the keys that each row and query head of a step reads, by key codes on a GPU: scans
// of the signs, the other bits of the best, the best of these, and the weights of means for the
// rest. Pointers lie in device memory; all that a recorded graph may find changed lies there.
#include <algorithm>

#include "kernels/code/device_codes.h"
#include "kernels/code/tail_means.h"
#include "kernels/gather/attend_lists.h"

namespace tandem {

inline constexpr int kRegionKeys = 512;            // that a warp scans
inline constexpr int kScanKeys = 4 * kRegionKeys;  // a block's
inline constexpr int kMostSharing = 8;             // heads of a set
/// Room for a key's scores under `heads` heads that share a set.
constexpr int shared_scores(int heads) { return heads <= 4 ? 4 : 8; }

/// A query as scans read it: code.h's CodeQuery, and what its choice goes by.
struct DeviceCodeQuery {
  float sign_gain, gain, axis_gain;
  float total;   // of the whole numbers
  float center;  // scale times q . center: the log weight of score 0
  float floor;   // the score that candidates reach, or the rank where heads share a set; -inf: all
                 // keys are candidates
};

/// A key whose score, or rank where heads share a set, reaches a floor.
struct alignas(8) KeptKey {
  float score;
  uint32_t key;
};

/// Room for the choice of some rows at a time, of n_lists query heads' lists or n_sets sets that
/// heads share, over at most max_keys indexed keys.
struct ChooseCodedScratch {
  DeviceCodeQuery* queries;  // [n_lists]
  int8_t* q;                 // [n_lists, dims]
  // By list, or by set where heads share them.
  KeptKey* scanned;  // [., key_stride] those that reach the floor, of region r from r * kRegionKeys
                     // on; by signs, then by all bits
  int32_t* counts;   // [., region_stride] how many of each region
  uint32_t* orders;  // [., key_stride] of those of all regions, one after the other
  uint32_t* keys;    // [., key_stride]
  int64_t key_stride, region_stride;  // the first a multiple of kRegionKeys
  float* references = nullptr;        // [n_lists] key_ranks.h; where heads share sets
  float* group_scores = nullptr;      // [n_sets, key_stride, shared_scores()] of scanned keys
};

struct ChooseCodedParams {
  // Out, of list row * n_heads + head, or row * n_kv_heads + KV head where heads share a set,
  // counted from the first row, as QueryLists has them: the first `begin` tokens, then the chosen
  // ones, ascending.
  int32_t* ids;
  int32_t* count;
  int64_t stride;
  // Of row * n_heads + head, as ListTails has them.
  float* masses;  // relative to exp(origin), 0 for chosen keys; null: no tails
  float* origin;
  int64_t mass_stride;      // room for most_masses(max_keys)
  DeviceClusters clusters;  // by these; without ids by run
  // Out, for a sample of the others (draw_tail.h): of list i and key j at i * scratch.key_stride +
  // j the score, by all bits where it is a candidate, -inf where it is chosen; and the least score
  // of a chosen key. Null: not left. Lists whose keys are all chosen leave none.
  float* tail_scores = nullptr;
  float* threshold = nullptr;   // [lists]
  float* exact_mass = nullptr;  // [lists] sum of the chosen keys' weights, relative to
                                // exp(threshold); null: not left
  DeviceCodes codes;
  const int32_t* blocks;  // [slots, max_blocks]
  const int32_t* ends;    // [slots] tokens [begin, ends[slot]) are indexed
  int max_blocks, begin;
  const void* q;  // [rows, n_heads, d] of dtype
  DType dtype;
  float scale;                      // multiplies scores
  const int32_t *slot, *row_begin;  // as in AttendListsParams
  int n_seqs, n_heads, n_kv_heads;
  int first_row, n_rows;  // the rows whose lists are chosen
  int max_keys;           // indexed, of any slot
  double refine, exact;   // shares of the keys: candidates and those that are read
  int least_exact;
  double mass = 0;      // above 0: only as many are read, best first, as hold this share of the
                        // estimated weights, at least least_exact; masses have to be there
  bool shared = false;  // one set for the heads of a KV head, 2 to kMostSharing of them
  ChooseCodedScratch scratch;
};

/// Masses of n keys: of runs, or of the clusters of every block that scans.
constexpr int scanned_masses(bool by_cluster, int n) {
  return by_cluster ? (n + kScanKeys - 1) / kScanKeys * kValueClusters
                    : (n + kMeanKeys - 1) / kMeanKeys;
}
constexpr int most_masses(int n) {
  return std::max(scanned_masses(false, n), scanned_masses(true, n));
}
/// Words of shared memory that a block needs for a list of up to max_keys keys and `heads` heads:
/// one a region and one more, a bit a key, and a word a run or cluster and head.
constexpr int64_t choice_shared_words(int64_t max_keys, int heads) {
  return max_keys / kRegionKeys + 2 + (max_keys + 31) / 32 +
         std::max<int64_t>((max_keys + kMeanKeys - 1) / kMeanKeys, kValueClusters) * heads;
}
/// In bytes, with what it needs for any list.
constexpr int64_t choice_shared_bytes(int64_t max_keys, int heads) {
  return 32 * 1024 + choice_shared_words(max_keys, heads) * int64_t{sizeof(uint32_t)};
}
/// Of n keys min(n, max(least_exact, exact n)) are chosen, the best by all bits of the candidates;
/// of equal scores the lowest ids. Candidates are the keys whose scores by signs reach a floor,
/// that of about twice as many, or of refine n if those are more (key_ranks.h): all keys where no
/// more than are chosen do. Heads that share a set choose by ranks.
/// numerics scores have the bits of code_scan and code_refine, hence given equal codes and whole
///          numbers of queries the CPU's sets. Masses f32, 1e-5 of the largest, and by cluster 1e-7
///          of the threshold's weight for each key more. Keys whose scores lie between the
///          threshold of the chosen and a floor above it count with their own estimates and not
///          with the threshold's. Budgets by mass are within rounding of the share
/// cost     reads dims / 8 + 2 bytes a key and KV head once for up to four heads, and dims (bits - 1)
///          / 8 a candidate
void choose_coded_cuda(const ChooseCodedParams&, Stream);

}  // namespace tandem
