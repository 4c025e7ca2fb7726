#include "eval/continuation.h"

#include <algorithm>

#include "ops/sampling.h"

namespace tandem::eval {
namespace {

/// Calls `visit(i, row)` for each row of logits on the host.
template <class Visit>
void for_each_logits(const Tensor& logits, const Visit& visit) {
  const ops::LogitStats stats = ops::logit_stats(logits);
  for (size_t i = 0; i < stats.argmax.size(); ++i)
    visit(i, LogitRow{logits.slice(static_cast<int64_t>(i), 1).as<float>(), stats.argmax[i],
                      stats.lse[i]});
}

}  // namespace

Prompts::Prompts(decode::Engine& engine, std::vector<Text> texts)
    : engine_(engine), texts_(std::move(texts)), slots_(engine.cache()) {
  for (size_t i = 0; i < texts_.size(); ++i) slots_.create(engine.cache().all_readers());
}

void Prompts::read(std::span<const int32_t> Text::*part, bool ends_prompt,
                   const std::function<void(size_t i, const LogitRow& row)>& on_row) {
  std::vector<decode::SeqTokens> sequences;
  for (size_t i = 0; i < texts_.size(); ++i)
    sequences.push_back({slots_[i], texts_[i].*part, ends_prompt});
  engine_.prefill(sequences, [&](std::span<const size_t> which, const Tensor& logits) {
    if (!on_row) return;
    for_each_logits(engine_.on_host(logits),
                    [&](size_t i, const LogitRow& row) { on_row(which[i], row); });
  });
}

void Prompts::for_each(const std::vector<Protocol>& protocols,
                       const std::function<void(size_t i, const LogitRow& row)>& on_row,
                       const std::function<void(Protocol)>& judge) {
  const auto wants = [&](Protocol protocol) {
    return std::ranges::find(protocols, protocol) != protocols.end();
  };
  // Policies build their index where a prompt ends.
  read(&Text::prompt, wants(Protocol::sparse), {});
  if (wants(Protocol::sparse)) judge(Protocol::sparse);
  if (!wants(Protocol::dense)) return;
  read(&Text::question, true, on_row);
  judge(Protocol::dense);
}

Continuation::Continuation(const Prompts& prompts, int policy)
    : engine_(prompts.engine()), slots_(engine_.cache()), meter_(engine_, policy, prompts.size()) {
  for (size_t i = 0; i < prompts.size(); ++i) slots_.fork(prompts.slots()[i], policy);
}

void Continuation::read(std::span<const Part> parts, const OnRow& on_row) {
  const auto most = static_cast<size_t>(engine_.model().options().max_rows);
  size_t end = 0;
  for (size_t begin = 0; begin < parts.size(); begin = end) {
    size_t rows = 0;
    for (end = begin;
         end < parts.size() && (end == begin || rows + parts[end].tokens.size() <= most); ++end)
      rows += parts[end].tokens.size();
    forward(parts.subspan(begin, end - begin),
            [&](size_t part, size_t row, const LogitRow& r) { on_row(begin + part, row, r); });
  }
}

void Continuation::forward(std::span<const Part> parts, const OnRow& on_row) {
  std::vector<decode::SeqTokens> step;
  std::vector<std::pair<size_t, size_t>> places;  // part and row of each row of the step
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    step.push_back({slots_[part.i], part.tokens, true});
    meter_.add(part.i, engine_.cache().length(slots_[part.i]),
               static_cast<int>(part.tokens.size()));
    for (size_t row = 0; row < part.tokens.size(); ++row) places.emplace_back(p, row);
  }
  engine_.forward_all(kv::Phase::extend, step, [&](int first, const Tensor& logits) {
    for_each_logits(logits, [&](size_t i, const LogitRow& row) {
      const auto [part, place] = places[static_cast<size_t>(first) + i];
      on_row(part, place, row);
    });
  });
}

std::vector<Ids> Continuation::predict(std::span<const Part> parts) {
  std::vector<Ids> best(parts.size());
  read(parts, [&](size_t part, size_t, const LogitRow& row) { best[part].push_back(row.argmax); });
  return best;
}

}  // namespace tandem::eval
