#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decode/decoder.h"

namespace tandem::decode {

/// One sequence to generate: an optional prefix that lives in the cache already, and new tokens.
struct Request {
  int prefix_slot = -1;                  // shared, not consumed; -1 = none
  int own_slot = -1;                     // goes on in this slot, which stays; -1 = in a new one
  std::span<const int32_t> prefix = {};  // tokens of either
  std::vector<int32_t> tokens;           // after the prefix; may be empty only with a prefix
  int adapter = -1;                      // of the engine's named ones; negative: none
};

struct GenerateSpec {
  SamplerSpec sampler;
  int max_tokens = 0;              // new tokens of each sequence
  int max_active = 0;              // sequences at a time, 0 = as many as there is room for
  int max_context = 0;             // prompt and new tokens together, 0 = no limit of its own
  std::vector<int32_t> stop_ids;   // the model's end-of-text ids and sampling.stop_ids
  std::vector<std::string> stops;  // matched against text that shows special tokens
};

struct TokenEvent {
  int seq = 0;
  int32_t id = 0;
  std::string text;   // what may be shown now; held-back text comes with a later token
  float logprob = 0;  // natural log of the untempered softmax
  std::vector<std::pair<int32_t, float>> top;
};

enum class Finish : uint8_t { length, stop_id, stop_string, context };
const char* finish_name(Finish finish);

struct GenerateEvents {
  std::function<void(int seq, int64_t n_tokens)> on_prompt;
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(int seq, Finish finish, const std::string& rest)> on_finish;
  std::function<void(int64_t done, int64_t total)> on_prefill;
  Interrupted interrupted;  // polled between steps; that of the engine's spec within them too
};

struct GenerateReport {
  int64_t prompt_tokens = 0;  // prefilled here, shared prefixes not counted
  int64_t new_tokens = 0;
  int64_t decode_steps = 0;
  double prefill_s = 0;
  double decode_s = 0;
  double bytes_read = 0;       // of weights, keys and values, in all decode steps
  int64_t tokens_decoded = 0;  // by decode steps (the first of each sequence comes from prefill)
  int switches = 0;            // of the adapter in the weights
  double switch_s = 0;
};

/// Generates all requests, at most engine.spec().max_seqs at a time less the prefixes alive; a
/// sequence that ends makes room for the next. Draws are named by (seed, sequence index, position),
/// so the text of a sequence does not depend on its neighbours. Where adapters are switched in the
/// weights, requests go adapter by adapter, in the order in which each is first named.
/// errors   kind interrupted, numeric, memory
/// decoder  how tokens are found; without one, the engine alone draws one token a step, under the
///          first policy of its cache
GenerateReport generate(Engine& engine, Decoder& decoder, std::span<const Request> requests,
                        const GenerateSpec& spec, const GenerateEvents& events);
GenerateReport generate(Engine& engine, std::span<const Request> requests, const GenerateSpec& spec,
                        const GenerateEvents& events);
/// The report counts from where it stands, and holds what was done after an error too.
void generate(Engine& engine, Decoder& decoder, std::span<const Request> requests,
              const GenerateSpec& spec, const GenerateEvents& events, GenerateReport& report);

}  // namespace tandem::decode
