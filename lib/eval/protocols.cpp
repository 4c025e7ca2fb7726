#include "eval/protocols.h"

#include <algorithm>

#include "base/check.h"
#include "ops/sampling.h"

namespace tandem::eval {
namespace {

using decode::Engine;
using decode::SeqTokens;

/// A sequence of the cache that ends with its scope.
class Slot {
 public:
  Slot(Engine& engine, int id) : engine_(engine), id_(id) {}
  ~Slot() { engine_.cache().release(id_); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  int id() const { return id_; }

 private:
  Engine& engine_;
  int id_;
};

/// The most likely token after each of `tokens`, which go through the slot's policy.
Ids predict(Engine& engine, int slot, std::span<const int32_t> tokens) {
  Ids best;
  if (tokens.empty()) return best;
  const SeqTokens part[] = {{slot, tokens, true}};
  engine.forward_all(kv::Phase::extend, part, [&](int, const Tensor& logits) {
    const std::vector<int32_t> argmax = ops::logit_stats(logits).argmax;
    best.insert(best.end(), argmax.begin(), argmax.end());
  });
  return best;
}

/// Prefills densely. Returns the most likely next token.
int32_t prefill(Engine& engine, int slot, const Ids& tokens) {
  int32_t next = -1;
  const SeqTokens part[] = {{slot, tokens, true}};
  engine.prefill(part, [&](size_t, const float* logits) {
    const Tensor row(const_cast<float*>(logits), DType::f32, {1, engine.config().vocab_size});
    next = ops::logit_stats(row).argmax[0];
  });
  return next;
}

/// `first` is the prediction of the first answer token where that is known already; otherwise the
/// question still has to go through the policy.
bool answers_forced(Engine& engine, int slot, const Case& c, std::optional<int32_t> first) {
  if (first && *first != c.answer[0]) return false;
  Ids rows = first ? Ids{} : c.question;
  const size_t skip = first ? 0 : rows.size() - 1;  // rows that predict no answer token
  rows.insert(rows.end(), c.answer.begin(), c.answer.end() - 1);
  const Ids best = predict(engine, slot, rows);
  return std::equal(best.begin() + static_cast<std::ptrdiff_t>(skip), best.end(),
                    c.answer.begin() + (first ? 1 : 0), c.answer.end());
}

/// Greedy decoding for as long as its text is the beginning of the answer's.
bool answers_generated(Engine& engine, int slot, const Case& c, std::optional<int32_t> first) {
  const text::Tokenizer& tokenizer = *engine.tokenizer();
  // The answer as it reads after decoding: the space in front may be the tokenizer's own.
  const std::string wanted = tokenizer.decode(c.answer);
  Ids written = {first ? *first : predict(engine, slot, c.question).back()};
  while (true) {
    const std::string text = tokenizer.decode(written);
    if (text == wanted) return true;
    const bool full = engine.cache().length(slot) >= engine.spec().max_tokens;
    if (full || text.size() >= wanted.size() || !wanted.starts_with(text)) return false;
    written.push_back(predict(engine, slot, std::span(written).last(1))[0]);
  }
}

void judge(Engine& engine, int base, const Case& c, const CaseSpec& spec, Protocol protocol,
           std::optional<int32_t> first, std::vector<Outcome>& outcomes) {
  const int n_policies = static_cast<int>(engine.spec().caches.size());
  for (int policy = 0; policy < n_policies; ++policy)
    for (const Score score : spec.scores) {
      const Slot slot(engine, engine.cache().fork(base, policy));
      const bool correct = score == Score::forced ? answers_forced(engine, slot.id(), c, first)
                                                  : answers_generated(engine, slot.id(), c, first);
      outcomes.push_back({policy, protocol, score, correct});
    }
}

}  // namespace

std::vector<Outcome> run_case(Engine& engine, const Case& c, const CaseSpec& spec) {
  TANDEM_CHECK(!c.haystack.empty() && !c.question.empty() && !c.answer.empty(), "an empty case");
  const auto wants = [&](Protocol p) {
    return std::ranges::find(spec.protocols, p) != spec.protocols.end();
  };
  std::vector<Outcome> outcomes;
  const Slot base(engine, engine.cache().create(0));
  prefill(engine, base.id(), c.haystack);
  if (wants(Protocol::sparse))
    judge(engine, base.id(), c, spec, Protocol::sparse, std::nullopt, outcomes);
  if (wants(Protocol::dense)) {
    const int32_t first = prefill(engine, base.id(), c.question);
    judge(engine, base.id(), c, spec, Protocol::dense, first, outcomes);
  }
  return outcomes;
}

decode::EngineSpec case_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int prefill_chunk, int max_tokens) {
  decode::EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk = std::max(prefill_chunk, static_cast<int>(kMaxTailTokens));
  spec.max_seqs = 2;  // the prefill and one fork of it
  spec.max_tokens = max_tokens;
  spec.total_tokens = int64_t{max_tokens} + static_cast<int64_t>(kMaxTailTokens);
  spec.max_logit_rows = 64;  // rows of an answer, mostly; more run in pieces
  for (const NamedPolicy& policy : policies) spec.caches.push_back(policy.cache);
  return spec;
}

double keys_read_share(const recipe::Cache& cache, const model::ModelConfig& config, int length) {
  const auto policy = kv::make_policy(
      cache, {.geometry = model::geometry_of(config, DType::f32), .max_tokens = length});
  double keys = 0;
  for (int layer = 0; layer < config.n_layers; ++layer) keys += policy->keys_read(layer, length);
  return keys / config.n_layers / length;
}

}  // namespace tandem::eval
