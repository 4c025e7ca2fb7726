#include "text/bpe_windows.h"

#include <algorithm>

namespace tandem::text {

BpeWindows::End BpeWindows::apply(const BpeMerger& merger, BpeWorkspace& workspace,
                                  const Fill& fill, const GoOn& go_on, std::vector<int32_t>& ids) {
  symbols_.clear();
  merged_.clear();
  int32_t first = -1;     // what the window has to begin with, unless it is the word's first
  size_t first_size = 0;  // its symbols
  while (true) {
    const bool is_last = !fill(kWindow, symbols_);
    if (symbols_ != merged_) {  // else, in a long repetition, the tokens are known
      merged_ = tokens_ = symbols_;
      merger.apply(tokens_, workspace, &starts_);
    }
    const auto end_of = [&](size_t i) {
      return i + 1 < starts_.size() ? starts_[i + 1] : symbols_.size();
    };
    if (first >= 0 && (tokens_.front() != first || end_of(0) != first_size)) return End::uncertain;
    if (is_last) {
      ids.insert(ids.end(), tokens_.begin(), tokens_.end());
      return End::whole;
    }
    // The last token that begins before the margin.
    const auto margin = std::ranges::lower_bound(starts_, symbols_.size() - kMargin);
    const auto next = static_cast<size_t>(margin - starts_.begin()) - 1;
    if (next == 0) return End::uncertain;  // a token as long as a window
    ids.insert(ids.end(), tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(next));
    first = tokens_[next];
    first_size = end_of(next) - starts_[next];
    symbols_.erase(symbols_.begin(), symbols_.begin() + static_cast<ptrdiff_t>(starts_[next]));
    if (!go_on(symbols_.size())) return End::stopped;
  }
}

}  // namespace tandem::text
