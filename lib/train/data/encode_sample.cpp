#include "train/data/encode_sample.h"

#include <algorithm>

namespace tandem::train {

int64_t Sample::n_supervised() const {
  int64_t n = 0;
  for (const TokenSpan& span : supervised) n += span.end - span.begin;
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

Sample encode_sample(const text::Tokenizer& tokenizer, const text::RenderedChat& text, Mask mask,
                     bool prefixed) {
  std::vector<size_t> cuts;
  for (const text::TextSpan& span : text.answers) cuts.insert(cuts.end(), {span.begin, span.end});
  text::CutIds encoded =
      tokenizer.encode_cut(text.text, cuts, {.add_bos = false, .parse_special = true});

  Sample sample{.ids = std::move(encoded.ids), .supervised = {}};
  int32_t shift = 0;
  const auto& prefix = tokenizer.prefix();
  const bool has_prefix = sample.ids.size() >= prefix.size() &&
                          std::equal(prefix.begin(), prefix.end(), sample.ids.begin());
  if (prefixed && !has_prefix) {
    sample.ids.insert(sample.ids.begin(), prefix.begin(), prefix.end());
    shift = static_cast<int32_t>(prefix.size());
  }
  const auto add = [&](size_t begin, size_t end) {
    const TokenSpan span{std::max(static_cast<int32_t>(begin), 1), static_cast<int32_t>(end)};
    if (span.begin < span.end) sample.supervised.push_back(span);
  };
  if (mask == Mask::all && !text.answers.empty())
    add(0, sample.ids.size());
  else
    for (size_t i = 0; i < encoded.before.size(); i += 2)
      add(encoded.before[i] + static_cast<size_t>(shift),
          encoded.before[i + 1] + static_cast<size_t>(shift));
  return sample;
}

}  // namespace tandem::train
