#pragma once
#include <string>

#include "kv/policies/key_codes.h"

namespace tandem::kv {

/// Lists of keys that rows and query heads of a step, or KV heads, choose by codes on a GPU, and
/// the weights of the others. They last until the next are made.
class CodedLists {
 public:
  /// Memory for the scores of the rows whose lists are made at a time, lists not counted: as much
  /// as eight rows of 128K tokens take under 32 heads.
  static constexpr size_t kMostBytes = size_t{512} << 20;
  static size_t row_bytes(const recipe::Hybrid& spec, const Bounds& bounds, const KeyCodes& codes);

  /// seed    of samples
  CodedLists(const recipe::Hybrid& spec, uint64_t seed, const Bounds& bounds, const KeyCodes& codes,
             const TokenIndex& index, int rows_at_once);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);
  void run_on(const Exec& exec);
  /// The errors of lists so far, under a budget by error; waits for the queue.
  KeyUsage errors() const;

  bool has_tail() const { return spec_.tail != recipe::HybridTail::none; }
  /// Query heads that read a list.
  int heads_a_list() const {
    return spec_.group == recipe::HybridGroup::shared ? bounds_.geometry.group() : 1;
  }
  /// Most tokens of a list; 0 where no text is long enough for an index.
  int most() const { return most_; }
  /// Adds the lists of a sparse layer, `ordinal` among these, to the plan.
  void choose(int layer, int ordinal, const Step& step, const Tensor& q,
              const DeviceIndex& device_index, AttendPlan& plan) const;

 private:
  struct Memory;

  /// Whether a block of the GPU can hold what a choice of max_keys_ needs.
  void check_room() const;
  /// Keys sampled from n that are indexed: as many are wanted at most.
  double most_wanted(int n) const;
  bool samples() const { return spec_.tail == recipe::HybridTail::sampled; }
  bool by_error() const { return spec_.budget == recipe::HybridBudget::error; }
  bool by_mass() const { return spec_.budget == recipe::HybridBudget::mass; }

  recipe::Hybrid spec_;
  uint64_t seed_;
  Bounds bounds_;
  const KeyCodes& codes_;
  int begin_, max_keys_, most_;
  int rows_at_once_;  // whose scores there is room for
  std::byte* memory_ = nullptr;
  Exec exec_;
};

}  // namespace tandem::kv
