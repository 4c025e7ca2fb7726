#include "speculate/measure/pair_logits.h"

#include <algorithm>

#include "base/check.h"
#include "kv/scoped_slots.h"
#include "speculate/draft/pair.h"

namespace tandem::speculate {
namespace {

Tensor read_rows(decode::Engine& engine, int slot, std::span<const int32_t> tokens,
                 std::vector<float>& logits) {
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  logits.resize(tokens.size() * vocab);
  const decode::SeqTokens rows[] = {{slot, tokens, false}};
  engine.forward_all(kv::Phase::prefill, rows, [&](int first_row, const Tensor& piece) {
    std::copy_n(piece.as<float>(), piece.elements(),
                &logits[static_cast<size_t>(first_row) * vocab]);
  });
  return {logits.data(),
          DType::f32,
          {static_cast<int64_t>(tokens.size()), static_cast<int64_t>(vocab)}};
}

}  // namespace

void PairLogits::read(std::span<const int32_t> text, int first_row, const Visit& visit) {
  TANDEM_CHECK(first_row >= 0 && static_cast<size_t>(first_row) < text.size(),
               "row {} is out of range", first_row);
  kv::ScopedSlots targets(target_.cache()), drafts(draft_.cache());
  const int target = targets.create(), draft = drafts.create();
  const int draft_vocab = draft_.config().vocab_size;
  if (const auto prompt = text.first(static_cast<size_t>(first_row)); !prompt.empty()) {
    const std::vector<int32_t> known = known_ids(prompt, draft_vocab);
    const decode::SeqTokens to_target[] = {{target, prompt, false}};
    const decode::SeqTokens to_draft[] = {{draft, known, false}};
    target_.prefill(to_target, {});
    draft_.prefill(to_draft, {});
  }
  const int chunk = std::min(
      {kRowsAtOnce, target_.model().options().max_rows, draft_.model().options().max_rows});
  const int end = static_cast<int>(text.size()) - 1;
  for (int row = first_row; row < end; row += chunk) {
    const auto rows =
        text.subspan(static_cast<size_t>(row), static_cast<size_t>(std::min(chunk, end - row)));
    const Tensor of_target = read_rows(target_, target, rows, target_logits_);
    const Tensor of_draft = read_rows(draft_, draft, known_ids(rows, draft_vocab), draft_logits_);
    visit(row, of_target, in_vocabulary(of_draft, target_.config().vocab_size, wide_logits_));
  }
}

}  // namespace tandem::speculate
