#pragma once
#include <cstdint>
#include <functional>
#include <span>

namespace tandem {

/// A speculation step of one sequence.
struct Round {
  int sequence = 0;
  int drafted = 0;   // draft tokens that the model verified
  int accepted = 0;  // of them; each step adds one more token, the model's own
  /// Nodes of the draft tree on the accepted path, valid during the call.
  std::span<const int32_t> path = {};
};
using OnRound = std::function<void(const Round&)>;

}  // namespace tandem
