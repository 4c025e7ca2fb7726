#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "cli/context.h"
#include "decode/generate.h"
#include "decode/prompts.h"
#include "recipe/sections.h"

// What all tools that generate text share: flags for prompts, and how tokens are drawn.
namespace tandem::tools {

/// --prompt, --file, --prompt-ids, --questions, --prompts, --chat, --system, --max-tokens, --stop,
/// --stop-id, --temperature, --top-k, --top-p, --min-p.
std::vector<cli::Flag> prompt_flags();

/// What those flags name.
/// has_other_text  nothing need be named, since a saved state is continued; nor does --dry-run need it
/// errors   kind usage: no prompt; standard input is a terminal; kind recipe: chat.thinking without chats
decode::PromptSource prompt_source(const cli::Context& cx, const recipe::Chat& chat,
                                   bool has_other_text = false);

/// Refuses prompts that the ranks of a run do not have in common, and says which date they hold.
void require_same(cli::Context& cx, const decode::PromptSet& prompts);

/// The recipe's sampling; with sampling.from model, keys that it leaves unset are those of the
/// model's generation_config.json.
/// errors   those of decode::suggested_sampling; kind recipe: sampling.stop without a tokenizer
recipe::Sampling settled_sampling(const cli::Context& cx, const recipe::Sampling& sampling,
                                  const decode::ModelFiles& model);

/// Notes the values that settled_sampling took from the model, or those that it could take where
/// the recipe says nothing.
void note_sampling(cli::Context& cx, const recipe::Sampling& sampling,
                   const decode::ModelFiles& model);

/// All five values, for results.
/// sampling  settled
nlohmann::ordered_json sampling_json(const recipe::Sampling& sampling);

/// For tools that do not look at the model's generation_config.json.
void refuse_model_sampling(const recipe::Sampling& sampling, recipe::Problems& p);

/// The text of section `data`: data.path, or the demo document where that is empty.
/// errors   kind input: the recipes are not installed
std::filesystem::path data_text(const recipe::Data& data);

}  // namespace tandem::tools
