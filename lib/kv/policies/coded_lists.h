#pragma once
#include <string>

#include "kv/policies/key_codes.h"

namespace tandem::kv {

/// Lists of keys that rows and query heads of a step choose by codes on a GPU, and the weights of
/// the others. They last until the next are made.
class CodedLists {
 public:
  CodedLists(const recipe::Hybrid& spec, const Bounds& bounds, const KeyCodes& codes,
             const TokenIndex& index);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);

  bool has_tail() const { return spec_.tail != recipe::HybridTail::none; }
  /// Most tokens of a list; 0 where no text is long enough for an index.
  int most() const { return most_; }
  /// Adds the lists of a sparse layer to the plan.
  void choose(int ordinal, const Step& step, const Tensor& q, const DeviceIndex& device_index,
              AttendPlan& plan) const;

 private:
  struct Memory;

  recipe::Hybrid spec_;
  Bounds bounds_;
  const KeyCodes& codes_;
  int begin_, max_keys_, most_;
  int rows_at_once_;  // whose scores there is room for
  std::byte* memory_ = nullptr;
};

}  // namespace tandem::kv
