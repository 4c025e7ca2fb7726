#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::decode {

/// Watches generated text for stop strings. Text that could still become one is held back, so that
/// a stop string never shows, not even in part. It takes the bytes of tokens, not whole characters:
/// a special token may cut a character in two, and both parts are shown as one.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  /// Takes the bytes of a token and returns those that may be shown. After a match everything later
  /// is swallowed.
  /// shown  false: the bytes are matched but never returned, as those of special tokens
  std::string push(std::string_view bytes, bool shown = true);
  /// What was held back, when generation ends without a match.
  std::string flush();
  bool matched() const { return matched_; }

 private:
  /// Removes the first `n` held bytes and returns those of them that are shown.
  std::string take(size_t n);

  std::vector<std::string> stops_;
  std::string held_;
  std::vector<bool> shown_;  // of each byte of held_
  bool matched_ = false;
};

}  // namespace tandem::decode
