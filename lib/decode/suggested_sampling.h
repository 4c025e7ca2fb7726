#pragma once
#include <filesystem>
#include <string_view>

#include "decode/generate.h"
#include "recipe/sections.h"

namespace tandem::decode {

/// How the generation_config.json of a model folder would draw tokens; keys that it leaves out, and
/// all of them without such a file, are unset. `do_sample: false` is temperature 0. As in vLLM, but
/// not in transformers, a file that gives a temperature need not say do_sample, and top_k is off
/// where the file does not give it.
/// errors   kind input: malformed JSON, a value of another type or out of range
recipe::Sampling suggested_sampling(const std::filesystem::path& model_folder);

/// The same from the file's text.
recipe::Sampling parse_suggested_sampling(std::string_view text, const std::string& where);

/// Fills the keys that `sampling` leaves unset.
void fill(recipe::Sampling& sampling, const recipe::Sampling& suggested);

/// Returns how a run draws tokens and when its texts end.
/// max_context  tokens of a sequence, prompt included
/// errors       kind recipe: an id of sampling.stop_ids beyond the vocabulary
GenerateSpec generate_spec(const recipe::Sampling& sampling, int64_t seed, int top_logprobs,
                           const model::ModelConfig& config, int max_context);

}  // namespace tandem::decode
