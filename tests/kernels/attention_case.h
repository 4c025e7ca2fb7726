#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "kernels/attention/attention_cpu.h"

namespace tandem::test {

struct SeqShape {
  int base, rows;
  int tentative = 0;  // of the rows between

  int keys() const { return base + tentative + rows; }
};

/// One attention problem, described by numbers only.
struct AttentionSpec {
  int d = 64, group = 1, kv_heads = 1;
  std::vector<SeqShape> seqs = {};
  int window = 0, sinks = 0, key_lo = 0, key_hi = INT_MAX;
  bool tree = false;
  DType dtype = DType::f32, out_dtype = DType::f32;
  uint32_t seed = 1;

  std::string text() const;
};

/// The memory of one problem. Pages lie in a random order; slots never written hold NaN, keys that
/// no row of the step may see hold large numbers, and pages all of whose keys have left every row's
/// window are released (-1): a leak shows as a NaN, a large error or a crash.
class AttentionCase {
 public:
  explicit AttentionCase(const AttentionSpec& spec);

  /// Runs a variant over outputs filled with NaN.
  void run(const AttentionKernel& kernel, int threads);
  /// Runs the reference for rows [begin, end).
  void run_ref(Range rows);

  /// Parameters over this case's memory, for calls on parts of it.
  AttentionParams params();
  float out(size_t i) const;
  const std::vector<unsigned char>& out_bytes() const { return out_; }
  const std::vector<float>& lse() const { return lse_; }
  int n_rows() const { return row_begin_.back(); }
  size_t row_values() const { return static_cast<size_t>(spec_.group * spec_.kv_heads * spec_.d); }
  const AttentionSpec& spec() const { return spec_; }

 private:
  void place_pages();
  void fill_pools();
  void grow_trees();
  bool seen_by_any(int seq, int key_slot) const;

  AttentionSpec spec_;
  int max_pages_ = 0, mask_words_ = 0;
  size_t n_pages_ = 0;
  std::vector<unsigned char> q_, k_, v_, out_;
  std::vector<float> lse_;
  std::vector<int32_t> table_, row_begin_, base_, tentative_, pos_;
  std::vector<uint64_t> mask_;
};

/// Bounds of |variant - reference|. Values are at most 1 in magnitude and scores about 8, and
/// rounding errors of a chain of n operations add up like a random walk, sqrt(n) units of 2^-24:
/// the score has d of them (each of the score's size), the sums over keys one a key. A factor of 4
/// covers the worst of the many values compared.
struct Tolerance {
  double out, lse;
};
Tolerance tolerance(const AttentionSpec& s, int n_keys);
/// Rows whose reference is computed: the ends of the batch and of every sequence, and some between.
std::set<int> rows_to_check(const AttentionSpec& s);
/// Gives sequences that have rows so many tentative ones before them, in turn.
void add_tentative(AttentionSpec& s, const std::vector<int>& counts);
/// Masks by number, 0 to 6: none, window and sinks, tree, window, a range of keys, a tree with
/// both, and a window of the row itself.
inline constexpr int kMasks = 7;
void apply_mask(AttentionSpec& s, int kind);

/// Runs any parameters with memory for the workspace taken for the call.
void run_attention(const AttentionKernel& kernel, const AttentionParams& p, int threads);

struct AttentionVariant {
  Isa isa;
  const AttentionKernel* kernel;
};
/// The variants of the tables that this CPU can run, each once.
std::vector<AttentionVariant> attention_variants(DType dtype);

}  // namespace tandem::test
