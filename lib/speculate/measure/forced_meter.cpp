#include "speculate/measure/forced_meter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/scoped_slots.h"
#include "speculate/draft/pair.h"

namespace tandem::speculate {
namespace {

/// Reads the texts' beginnings into sequences of another model's cache.
void read_beginnings(const Reader& draft, std::span<const ForcedText> texts,
                     kv::ScopedSlots& slots) {
  std::vector<std::vector<int32_t>> known;
  std::vector<decode::SeqTokens> prompts;
  for (const ForcedText& text : texts) {
    slots.create(draft.reading.keys);
    known.push_back(known_ids(text.tokens.first(static_cast<size_t>(text.first) - 1),
                              draft.engine->config().vocab_size));
  }
  for (size_t i = 0; i < texts.size(); ++i)
    if (!known[i].empty()) prompts.push_back({slots.all()[i], known[i], true});
  if (!prompts.empty()) draft.engine->prefill(prompts, {});
}

}  // namespace

ForcedMeter::ForcedMeter(Reader target, std::vector<Reader> drafts,
                         std::vector<double> temperatures, int gamma)
    : target_(target),
      drafts_(std::move(drafts)),
      temperatures_(std::move(temperatures)),
      gamma_(gamma),
      logits_(drafts_.size() + 1) {
  TANDEM_CHECK(!is_other_model() || drafts_.size() == 1,
               "found {} drafts, expected one if it is another model", drafts_.size());
}

ForcedMeter::Rows ForcedMeter::rows_at(int begin, int gamma, std::span<const ForcedText> texts) {
  Rows rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    const ForcedText& text = texts[i];
    const int left = static_cast<int>(text.tokens.size()) - text.first - begin;
    const int n = std::clamp(left, 0, gamma);
    rows.n.push_back(n);
    for (int r = 0; r < n; ++r) {
      // The row of a token predicts the next.
      rows.tokens.push_back(text.tokens[static_cast<size_t>(text.first - 1 + begin + r)]);
      rows.text.push_back(i);
      rows.position.push_back(static_cast<size_t>(begin + r));
    }
  }
  return rows;
}

kv::Step ForcedMeter::forward(const Reader& reader, std::span<const int> slots, const Rows& rows,
                              std::vector<float>& logits) {
  decode::Engine& engine = *reader.engine;
  const std::vector<int32_t> ids = known_ids(rows.tokens, engine.config().vocab_size);
  std::vector<kv::SeqRows> of_texts;
  for (size_t i = 0; i < slots.size(); ++i)
    if (rows.n[i] > 0) of_texts.push_back({slots[i], rows.n[i], false});
  const auto n = static_cast<int>(ids.size());
  const int most = engine.model().options().max_logit_rows;
  engine.choose_products(n, std::min(n, most));
  kv::Step step = engine.cache().begin({.rows = of_texts, .reading = reader.reading});
  engine.model().forward(ids, step, engine.cache());
  const int vocab = target_.engine->config().vocab_size;
  logits.resize(static_cast<size_t>(n) * static_cast<size_t>(vocab));
  std::vector<float> wide;
  for (int begin = 0; begin < n; begin += most) {
    std::vector<int32_t> some;
    for (int r = begin; r < std::min(n, begin + most); ++r) some.push_back(r);
    const Tensor piece = in_vocabulary(engine.on_host(engine.logits(some)), vocab, wide);
    std::copy_n(piece.as<float>(), piece.elements(), logits.begin() + int64_t{begin} * vocab);
  }
  return step;
}

ForcedMeter::Overlaps ForcedMeter::read(std::span<const int> slots,
                                        std::span<const ForcedText> texts) {
  std::vector<std::vector<double>> of_texts;
  for (const ForcedText& text : texts)
    of_texts.emplace_back(text.tokens.size() - static_cast<size_t>(text.first));
  Overlaps all(drafts_.size(), {temperatures_.size(), of_texts});
  visit(slots, texts, [&](const Rows& rows, const Tensor& logits, std::span<const Tensor> drafts) {
    const RowDistributions target(logits, temperatures_);
    for (size_t d = 0; d < drafts.size(); ++d) {
      const auto overlaps = target.overlaps(drafts[d]);
      for (size_t t = 0; t < overlaps.size(); ++t)
        for (size_t r = 0; r < overlaps[t].size(); ++r)
          all[d][t][rows.text[r]][rows.position[r]] = overlaps[t][r];
    }
  });
  return all;
}

void ForcedMeter::visit(std::span<const int> slots, std::span<const ForcedText> texts,
                        const Visit& visit) {
  int longest = 0;
  for (const ForcedText& text : texts) {
    const int n = static_cast<int>(text.tokens.size()) - text.first;
    TANDEM_CHECK(text.first >= 1 && n >= 0, "position {} is out of range for {} tokens", text.first,
                 text.tokens.size());
    longest = std::max(longest, n);
  }
  std::optional<kv::ScopedSlots> others;
  if (is_other_model())
    read_beginnings(drafts_[0], texts, others.emplace(drafts_[0].engine->cache()));
  const int64_t vocab = target_.engine->config().vocab_size;
  for (int begin = 0; begin < longest; begin += gamma_) {
    const Rows rows = rows_at(begin, gamma_, texts);
    // The target's forward comes last: its keys are those that stay.
    for (size_t d = 0; d < drafts_.size(); ++d) {
      const kv::Step step = forward(drafts_[d], others ? others->all() : slots, rows, logits_[d]);
      if (others) drafts_[d].engine->cache().commit(step);
    }
    target_.engine->cache().commit(forward(target_, slots, rows, logits_.back()));
    std::vector<Tensor> all;
    for (std::vector<float>& of : logits_)
      all.push_back({of.data(), DType::f32, {static_cast<int64_t>(rows.tokens.size()), vocab}});
    visit(rows, all.back(), std::span(all).first(drafts_.size()));
  }
}

}  // namespace tandem::speculate
