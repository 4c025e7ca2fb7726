#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// Settings that draw tokens and end an answer. Unset values mean greedy decoding with all filters
/// off; Model::suggested_sampling gives the values of the model's authors.
struct Sampling {
  int max_tokens = 256;               // new tokens of an answer
  std::vector<std::string> stop = {}; // texts that end an answer
  std::optional<double> temperature = {};         // 0 = greedy
  std::optional<int> top_k = {};                  // 0 = off
  std::optional<double> top_p = {};               // 1 = off
  std::optional<double> min_p = {};               // 0 = off
  std::optional<double> repetition_penalty = {};  // 1 = off
  int64_t seed = 0;
};

/// A token of an answer, as it is generated.
struct Token {
  int sequence = 0;           // its number in a batch; 0 in a session
  int32_t id = 0;              // -1: no token, only text that was held back for a stop text
  std::string_view text = {}; // may be empty: characters and stop texts are shown once complete
  float logprob = 0;          // natural log of its probability at temperature 1
};
/// Called with each token. Returning false stops generation.
using OnToken = std::function<bool(const Token&)>;

/// The reason why an answer ended.
enum class Finish : uint8_t {
  length,   // Sampling::max_tokens
  end,      // the model's end-of-text token
  stop,     // a text of Sampling::stop
  context,  // the context is full
  stopped,  // OnToken returned false
};

/// An answer.
struct Result {
  std::string text = {};
  std::vector<int32_t> ids = {};  // the end-of-text token is among them
  Finish finish = Finish::length;
  int64_t prompt_tokens = 0;  // read for this answer; tokens in the KV cache are not read again
  /// Decode steps; the prefill gives the first token. A batch has one number for all sequences.
  int64_t steps = 0;
  double prefill_s = 0, decode_s = 0;  // seconds; of a batch those of all
};

}  // namespace tandem
