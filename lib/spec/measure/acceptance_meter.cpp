#include "spec/measure/acceptance_meter.h"

#include <algorithm>

#include "base/check.h"
#include "spec/draft/pair.h"

namespace tandem::spec {
namespace {

/// Gives a sequence back however its use ends.
class Sequence {
 public:
  explicit Sequence(kv::Cache& cache) : cache_(cache), slot(cache.create()) {}
  ~Sequence() { cache_.release(slot); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

 private:
  kv::Cache& cache_;

 public:
  const int slot;
};

void read(decode::Engine& engine, int slot, std::span<const int32_t> tokens,
          std::vector<float>& logits) {
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  logits.resize(tokens.size() * vocab);
  const decode::SeqTokens rows[] = {{slot, tokens, false}};
  engine.forward_all(kv::Phase::prefill, rows, [&](int first_row, const Tensor& piece) {
    std::copy_n(piece.as<float>(), piece.elements(), &logits[static_cast<size_t>(first_row) * vocab]);
  });
}

}  // namespace

AcceptanceMeter::AcceptanceMeter(decode::Engine& target, decode::Engine& draft,
                                 const ops::VerifyRule& rule, int width)
    : target_(target),
      draft_(draft),
      rule_(rule),
      width_(width),
      sums_(width) {
  TANDEM_CHECK(width > 0 && width <= target.config().vocab_size, "{} children", width);
}

void AcceptanceMeter::add(int seq, int64_t seed, std::span<const int32_t> text, int first) {
  TANDEM_CHECK(first > 0 && static_cast<size_t>(first) <= text.size(), "position {}", first);
  const Sequence target(target_.cache()), draft(draft_.cache());
  const std::span<const int32_t> prompt = text.first(static_cast<size_t>(first) - 1);
  if (!prompt.empty()) {
    const decode::SeqTokens to_target[] = {{target.slot, prompt, false}};
    const std::vector<int32_t> known = known_ids(prompt, draft_.config().vocab_size);
    const decode::SeqTokens to_draft[] = {{draft.slot, known, false}};
    target_.prefill(to_target, {});
    draft_.prefill(to_draft, {});
  }
  const int chunk = std::min(
      {kRowsAtOnce, target_.model().options().max_rows, draft_.model().options().max_rows});
  const int end = static_cast<int>(text.size()) - 1;  // what follows the last token is not in the text
  for (int row = first - 1; row < end; row += chunk) {
    const int n = std::min(chunk, end - row);
    const auto rows = text.subspan(static_cast<size_t>(row), static_cast<size_t>(n));
    read(target_, target.slot, rows, target_logits_);
    read(draft_, draft.slot, known_ids(rows, draft_.config().vocab_size), draft_logits_);
    add_rows(seq, seed, text, row, n);
  }
}

void AcceptanceMeter::add_rows(int seq, int64_t seed, std::span<const int32_t> text, int first_row,
                               int n_rows) {
  const int64_t vocab = target_.config().vocab_size;
  const Tensor target(target_logits_.data(), DType::f32, {n_rows, vocab});
  const Tensor draft =
      in_vocabulary({draft_logits_.data(), DType::f32, {n_rows, draft_.config().vocab_size}},
                    static_cast<int>(vocab), wide_logits_);
  std::vector<ops::ParentNode> parents;
  std::vector<std::span<const int32_t>> seen;
  for (int r = 0; r < n_rows; ++r) {
    const int position = first_row + r + 1;
    parents.push_back({.round = {seed, seq, position}, .node = 0, .n_children = width_});
    seen.push_back(text.first(static_cast<size_t>(position)));
  }
  const bool by_match = rule_.accept_by == AcceptBy::match;
  const std::vector<int32_t> children =
      ops::draw_children(draft, by_match ? 0.0f : rule_.draft.temperature, parents);
  const std::vector<double> chances = ops::accept_chances(target, by_match ? Tensor{} : draft, rule_,
                                                          children, width_, seen);
  const auto width = static_cast<size_t>(width_);
  for (size_t r = 0; r < static_cast<size_t>(n_rows); ++r)
    sums_.add(std::span(chances).subspan(r * width, width));
}

}  // namespace tandem::spec
