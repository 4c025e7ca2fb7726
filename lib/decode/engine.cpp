#include "decode/engine.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::decode {
namespace {

/// Rows of any forward: a prefill chunk, or one token of every sequence.
int max_rows(const EngineSpec& s) {
  return static_cast<int>(
      std::max<int64_t>(std::min<int64_t>(s.prefill_chunk, s.total_tokens), s.max_seqs));
}

model::Llama::Options model_options(const EngineSpec& s) {
  return {.dtype = ops::weight_dtype(s.compute), .max_rows = max_rows(s),
          .max_logit_rows = std::max(s.max_logit_rows, s.max_seqs), .max_position = s.max_tokens,
          .interrupted = s.interrupted};
}

kv::Cache::Spec cache_spec(const EngineSpec& s, const model::ModelConfig& c) {
  return {.geometry = model::geometry_of(c, ops::weight_dtype(s.compute)), .max_seqs = s.max_seqs,
          .max_prompts = s.max_prompts, .max_tokens = s.max_tokens,
          .total_tokens = s.total_tokens, .max_rows = max_rows(s),
          .max_extend_rows = s.max_extend_rows,
          .policies = s.caches};
}

}  // namespace

MemoryPlan Engine::plan(const ModelFiles& files, const EngineSpec& spec) {
  ops::warm_up_linear(ops::weight_dtype(spec.compute));
  MemoryPlan plan;
  plan.add("process/program and tokenizer", resident_bytes());
  model::Llama::plan(files.config, model_options(spec), *files.source, plan);
  kv::Cache::plan(cache_spec(spec, files.config), plan);
  return plan;
}

Engine::Engine(ModelFiles files, const EngineSpec& spec,
               const std::function<void(double share)>& on_load)
    : spec_(spec),
      files_(std::move(files)),
      arena_(plan(files_, spec_)),
      model_(files_.config, model_options(spec_), std::move(files_.source), arena_, on_load),
      cache_(cache_spec(spec_, files_.config), arena_, model_.rope()) {}

kv::Step Engine::run(kv::Phase phase, std::span<const SeqTokens> sequences) {
  std::vector<kv::SeqRows> rows;
  tokens_.clear();
  for (const SeqTokens& s : sequences) {
    rows.push_back({s.slot, static_cast<int>(s.tokens.size()), s.ends_prompt});
    tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end());
  }
  kv::Step step = cache_.begin(phase, rows);
  model_.forward(tokens_, step, cache_);
  cache_.commit(step);
  return step;
}

void Engine::prefill(std::span<const SeqTokens> sequences, const OnLogits& on_logits,
                     const Progress& progress) {
  const auto chunk_rows = static_cast<size_t>(model_.options().max_rows);
  const auto max_in_step = static_cast<size_t>(model_.options().max_logit_rows);
  size_t next = 0, offset = 0;
  int64_t done = 0;
  while (next < sequences.size()) {
    // Fill one forward: the rest of the current sequence, then whole short ones, then a first part.
    // Texts that a policy has cut go on under it, whole ones densely: never in one forward.
    std::vector<SeqTokens> chunk;
    std::vector<size_t> finished;  // indices into `sequences`
    std::vector<int32_t> last_rows;
    size_t rows = 0;
    while (next < sequences.size() && rows < chunk_rows && chunk.size() < max_in_step) {
      const SeqTokens& s = sequences[next];
      if (!chunk.empty() && cache_.is_cut(s.slot) != cache_.is_cut(chunk[0].slot)) break;
      const size_t n = std::min(s.tokens.size() - offset, chunk_rows - rows);
      const bool ends = offset + n == s.tokens.size();
      chunk.push_back({s.slot, s.tokens.subspan(offset, n), ends && s.ends_prompt});
      rows += n;
      offset = ends ? 0 : offset + n;
      if (!ends) break;
      finished.push_back(next++);
      if (n > 0) last_rows.push_back(static_cast<int32_t>(rows) - 1);
    }
    run(kv::Phase::prefill, chunk);
    done += static_cast<int64_t>(rows);
    TANDEM_CHECK(last_rows.size() == finished.size(), "a sequence without tokens was prefilled");
    if (on_logits && !finished.empty()) on_logits(finished, model_.logits(last_rows));
    if (progress && !progress(done) && next < sequences.size())
      throw Error(ErrorKind::interrupted, "", "interrupted during prefill");
  }
}

Tensor Engine::extend(std::span<const SeqTokens> sequences) {
  const kv::Step step = run(kv::Phase::extend, sequences);
  std::vector<int32_t> last_rows;
  for (int b = 0; b < step.n_seqs; ++b)
    last_rows.push_back(step.row_begin[static_cast<size_t>(b) + 1] - 1);
  return model_.logits(last_rows);
}

void Engine::decode(std::span<const DrawSeq> sequences) {
  std::vector<SeqTokens> rows;
  for (const DrawSeq& s : sequences) rows.push_back({s.slot, s.tokens.last(1)});
  sampler_.draw(sequences, extend(rows));
}

void Engine::forward_all(kv::Phase phase, std::span<const SeqTokens> sequences,
                         const std::function<void(int, const Tensor&)>& visit) {
  const kv::Step step = run(phase, sequences);
  std::vector<int32_t> rows;
  for (int begin = 0; begin < step.n_rows; begin += static_cast<int>(rows.size())) {
    rows.clear();
    for (int r = begin; r < std::min(step.n_rows, begin + model_.options().max_logit_rows); ++r)
      rows.push_back(r);
    visit(begin, model_.logits(rows));
  }
}

}  // namespace tandem::decode
