#include "decode/stop.h"

#include <algorithm>
#include <utility>

namespace tandem::decode {
namespace {

/// Length of the longest end of `text` that begins `stop` without completing it.
size_t partial_match(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopMatcher::push(std::string_view bytes, bool shown) {
  if (matched_) return {};
  held_ += bytes;
  shown_.resize(held_.size(), shown);
  // The stop that is complete first, as if text came byte by byte; of those, the longest.
  std::pair<size_t, size_t> match{std::string::npos, 0};  // end, begin
  size_t hold = 0;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin != std::string::npos) match = std::min(match, {begin + stop.size(), begin});
    hold = std::max(hold, partial_match(held_, stop));
  }
  if (match.first != std::string::npos) {
    matched_ = true;
    std::string before = take(match.second);
    take(held_.size());
    return before;
  }
  return take(held_.size() - hold);
}

std::string StopMatcher::flush() { return take(held_.size()); }

std::string StopMatcher::take(size_t n) {
  std::string bytes;
  for (size_t i = 0; i < n; ++i)
    if (shown_[i]) bytes += held_[i];
  held_.erase(0, n);
  shown_.erase(shown_.begin(), shown_.begin() + static_cast<std::ptrdiff_t>(n));
  return bytes;
}

}  // namespace tandem::decode
