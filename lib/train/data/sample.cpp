#include "train/data/sample.h"

#include <algorithm>

namespace tandem::train {

int64_t n_tokens(std::span<const TokenSpan> spans) {
  int64_t n = 0;
  for (const TokenSpan& span : spans) n += span.end - span.begin;
  return n;
}

void Sample::truncate(size_t n) {
  if (ids.size() <= n) return;
  ids.resize(n);
  for (TokenSpan& span : supervised) span.end = std::min(span.end, static_cast<int32_t>(n));
  std::erase_if(supervised, [](const TokenSpan& span) { return span.begin >= span.end; });
}

void Sample::drop_tail() {
  if (!supervised.empty()) truncate(static_cast<size_t>(supervised.back().end));
}

}  // namespace tandem::train
