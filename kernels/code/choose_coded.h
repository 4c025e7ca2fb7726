#pragma once
// The choice of the keys that each row and query head of a step reads, by key codes on a GPU: scans
// of the signs, the other bits of the best, the best of these, and the weights of means for the
// rest. Pointers lie in device memory; all that a recorded graph may find changed lies there.
#include "kernels/code/device_codes.h"
#include "kernels/gather/attend_lists.h"

namespace tandem {

inline constexpr int kRegionKeys = 512;  // that a warp scans
inline constexpr int kMostSharing = 8;   // heads of a set
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

/// A key whose score by signs reaches a floor.
struct alignas(8) KeptKey {
  float score;
  uint32_t key;
};

/// Room for the choice of some rows at a time, of n_lists lists over at most max_keys indexed keys.
struct ChooseCodedScratch {
  DeviceCodeQuery* queries;  // [n_lists]
  int8_t* q;                 // [n_lists, dims]
  KeptKey* scanned;  // [n_lists, key_stride] those that reach the floor, of region r from r *
                     // kRegionKeys on
  int32_t* counts;   // [n_lists, region_stride] how many of each region
  float* kept;       // [n_lists, key_stride] those of all regions, one after the other, refined
  uint32_t* number;  // [n_lists, key_stride] their keys
  int64_t key_stride, region_stride;  // the first a multiple of kRegionKeys
  // In place of these where heads share a set; the set's other arrays are those of its first head's
  // list.
  float* references = nullptr;    // [n_lists] key_ranks.h
  float* group_scores = nullptr;  // [n_sets, key_stride, shared_scores()] of keys whose ranks reach
                                  // the floor
  uint16_t* group_keys = nullptr;  // [n_sets, key_stride] their numbers in the region
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
  int64_t mass_stride;
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

/// Shared memory that a block needs for a list of up to max_keys keys: a bit a key and a word a
/// run, and what it needs for any.
constexpr int64_t choice_shared_bytes(int64_t max_keys) {
  constexpr int64_t kAnyList = 32 * 1024, kRun = 256;
  return kAnyList + static_cast<int64_t>(sizeof(uint32_t)) *
                        ((max_keys + 31) / 32 + (max_keys + kRun - 1) / kRun);
}

/// Of n keys min(n, max(least_exact, exact n)) are chosen, the best by all bits of the candidates;
/// of equal scores the lowest ids. Candidates are the keys whose scores by signs reach a floor,
/// that of about twice as many, or of refine n if those are more (key_ranks.h): all keys where no
/// more than are chosen do. Heads that share a set choose by ranks.
/// numerics scores have the bits of code_scan and code_refine, hence given equal codes and whole
///          numbers of queries the CPU's sets; masses f32, 1e-5 of the largest, but for keys whose
///          scores lie between the threshold of the chosen and a floor above it, which count with
///          their own estimates and not with the threshold's. Budgets by mass are within rounding
///          of the share
/// cost     reads dims / 8 + 2 bytes a key and KV head once for up to four heads, and dims (bits - 1)
///          / 8 a candidate
void choose_coded_cuda(const ChooseCodedParams&, Stream);

}  // namespace tandem
