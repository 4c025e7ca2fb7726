#pragma once
#include <cstdint>
#include <vector>

#include "decode/generate.h"
#include "kv/scoped_slots.h"

namespace tandem::bench {

/// Prompts in a target's cache but for their last tokens, which those who continue them run
/// themselves. The first reading alone reads them: drafts choose keys where they begin. They go
/// with the scope.
class PromptSlots {
 public:
  /// prompts     not empty; they outlive this
  /// random_kv   in place of the prompts' keys and values
  /// errors      kind memory, interrupted
  PromptSlots(decode::Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
              bool random_kv);

  const std::vector<int>& slots() const { return slots_.all(); }
  const std::vector<decode::Request>& requests() const { return requests_; }
  /// What the prefill took.
  double seconds() const { return seconds_; }

 private:
  kv::ScopedSlots slots_;
  std::vector<decode::Request> requests_;
  double seconds_ = 0;
};

}  // namespace tandem::bench
