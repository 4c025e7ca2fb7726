#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::decode {

/// Watches generated text for stop strings. Text that could still become one is held back, so that
/// a stop string never shows, not even in part.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// Takes new text and returns what may be shown. After a match everything later is swallowed.
  std::string push(std::string_view text);
  /// What was held back, when generation ends without a match.
  std::string flush();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace tandem::decode
