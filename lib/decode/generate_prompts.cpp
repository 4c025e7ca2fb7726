#include "decode/generate_prompts.h"

#include "base/clock.h"
#include "kv/policy.h"

namespace tandem::decode {
namespace {

/// The prefix in the cache.
struct SharedPrefix {
  int slot = -1;  // -1 = nothing is shared
  std::vector<int32_t> tokens;
};

/// Prefills tokens whose logits are not needed, and shows progress.
/// report   gets their number
void read_tokens(const RunContext& run, Engine& engine, int slot, std::span<const int32_t> tokens,
                 GenerateReport& report) {
  const auto progress = run.progress("prefill", static_cast<double>(tokens.size()), "tok");
  const SeqTokens part[] = {{slot, tokens, false}};
  engine.prefill(part, {},
                 [&](int64_t done) { return progress->go_on(static_cast<double>(done)); });
  report.prompt_tokens += static_cast<int64_t>(tokens.size());
}

SharedPrefix read_prefix(const RunContext& run, Engine& engine, const PrefixSource& source,
                         GenerateReport& report) {
  SharedPrefix p;
  if (source.saved == nullptr && source.tokens.empty()) return p;
  const Stopwatch watch;
  const kv::Readers readers = engine.cache().all_readers();
  p.slot = source.saved != nullptr ? restore_state(*source.saved, engine, readers)
                                   : engine.cache().create(readers);
  if (source.saved != nullptr) p.tokens = source.saved->tokens;
  if (!source.tokens.empty()) read_tokens(run, engine, p.slot, source.tokens, report);
  // No end of a prompt, where a window would move on: only an index.
  if (source.index) engine.cache().adopt_prompt(p.slot);
  p.tokens.insert(p.tokens.end(), source.tokens.begin(), source.tokens.end());
  if (source.share) source.share(p.tokens);
  report.prefill_s += watch.seconds();
  if (!source.save_as.empty())
    save_state(source.save_as, engine, p.slot, p.tokens, source.existing, source.chat_date);
  return p;
}

/// Reads prompts that nothing shall follow.
void read_alone(const RunContext& run, Engine& engine, std::span<const Request> requests,
                GenerateReport& report) {
  const Stopwatch watch;
  for (const Request& r : requests) {
    if (r.tokens.empty()) continue;
    const int slot =
        r.prefix_slot >= 0 ? engine.cache().fork(r.prefix_slot, {}) : engine.cache().create();
    read_tokens(run, engine, slot, r.tokens, report);
    engine.cache().release(slot);
  }
  report.prefill_s += watch.seconds();
}

/// skip     tokens of the prefix that the prompts repeat
std::vector<Request> requests_after(const SharedPrefix& prefix, const PromptSet& prompts,
                                    size_t skip) {
  std::vector<Request> requests;
  for (size_t i = 0; i < prompts.sequences.size(); ++i) {
    const auto& ids = prompts.sequences[i];
    requests.push_back({.prefix_slot = prefix.slot,
                        .prefix = prefix.tokens,
                        .tokens = {ids.begin() + static_cast<long>(skip), ids.end()},
                        .adapter = prompts.adapters.empty() ? -1 : prompts.adapters[i]});
  }
  return requests;
}

}  // namespace

bool is_indexed_once(const recipe::Cache& cache, size_t n) {
  return n >= static_cast<size_t>(kv::needs_of(cache).shared_tokens);
}

std::vector<Request> requests_of(const PromptSet& prompts) {
  return requests_after({}, prompts, 0);
}

PromptsReport generate_prompts(const RunContext& run, Engine& engine, Decoder& decoder,
                               const PromptSet& prompts, const PrefixSource& source,
                               const GenerateSpec& how, const GenerateEvents& events) {
  PromptsReport report;
  report.max_context = how.max_context;
  try {
    const SharedPrefix prefix = read_prefix(run, engine, source, report);
    std::vector<Request> requests = requests_after(prefix, prompts, source.tokens.size());
    if (how.max_tokens == 0) {
      read_alone(run, engine, requests, report);
      requests.clear();
    }
    generate(engine, decoder, requests, how, events, report);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;
    report.ended = e;
  }
  return report;
}

}  // namespace tandem::decode
