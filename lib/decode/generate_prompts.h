#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/generate.h"
#include "decode/prompts.h"
#include "decode/run_context.h"
#include "decode/state.h"

namespace tandem::decode {

/// Holds the beginning of all sequences of a run. It is read once, before any of them.
struct PrefixSource {
  const SavedState* saved = nullptr;           // a state; null = none
  std::span<const int32_t> tokens = {};        // that follow it, the first of every prompt
  bool index = false;                          // policies index it once, for all sequences
  std::filesystem::path save_as = {};          // where its state is saved; empty = nowhere
  std::string chat_date = {};                  // that its tokens hold; empty = none
  io::Existing existing = io::Existing::kept;  // of a file of that name
  std::function<void(std::span<const int32_t>)> share = {};  // to a draft; empty = plain decoding
};

/// Returns true if policies index the first n tokens of all prompts once. An index holds the mean
/// of its keys, for all that follows: not of a few words that prompts happen to begin with. A
/// shorter one costs little to index again.
bool is_indexed_once(const recipe::Cache& cache, size_t n);

/// One request a prompt, read from its beginning.
std::vector<Request> requests_of(const PromptSet& prompts);

/// A run over prompts; its counts include the prefix.
struct PromptsReport : GenerateReport {
  int max_context = 0;         // tokens that a sequence could have
  std::optional<Error> ended;  // the interruption, for the caller to throw once the rest is shown
};

/// Generates what follows every prompt; where how.max_tokens is 0, reads the prompts alone.
/// errors   as decode::generate but for interruptions; kind input: the state cannot be restored or
///          saved
PromptsReport generate_prompts(const RunContext& run, Engine& engine, Decoder& decoder,
                               const PromptSet& prompts, const PrefixSource& source,
                               const GenerateSpec& how, const GenerateEvents& events);

}  // namespace tandem::decode
