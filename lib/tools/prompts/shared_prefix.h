#pragma once
#include <span>
#include <vector>

#include "cli/context.h"
#include "decode/generate.h"
#include "decode/prompts.h"

namespace tandem::tools {

/// What all texts of a run begin with, in the cache.
struct SharedPrefix {
  int slot = -1;  // -1 = nothing is shared
  std::vector<int32_t> tokens;
};

/// Prefills tokens whose logits nobody asks for, behind a progress line.
/// report   gets their number
void read_tokens(cli::Context& cx, decode::Engine& engine, int slot,
                 std::span<const int32_t> tokens, decode::GenerateReport& report);

/// One request a prompt, of what follows the prefix.
/// skip     tokens of the prefix that the prompts repeat
std::vector<decode::Request> requests_after(const SharedPrefix& prefix,
                                            const decode::PromptSet& prompts, size_t skip);

}  // namespace tandem::tools
