#include "tools/prompts/shared_prefix.h"

namespace tandem::tools {

void read_tokens(cli::Context& cx, decode::Engine& engine, int slot,
                 std::span<const int32_t> tokens, decode::GenerateReport& report) {
  cli::Progress progress(cx.terminal, "prefill", static_cast<double>(tokens.size()), "tok");
  const decode::SeqTokens part[] = {{slot, tokens, false}};
  engine.prefill(part, {}, [&](int64_t done) {
    progress.update(static_cast<double>(done));
    return cli::interrupted() == 0;
  });
  report.prompt_tokens += static_cast<int64_t>(tokens.size());
}

std::vector<decode::Request> requests_after(const SharedPrefix& prefix,
                                            const decode::PromptSet& prompts, size_t skip) {
  std::vector<decode::Request> requests;
  for (const auto& ids : prompts.sequences)
    requests.push_back({.prefix_slot = prefix.slot,
                        .prefix = prefix.tokens,
                        .tokens = {ids.begin() + static_cast<long>(skip), ids.end()}});
  return requests;
}

}  // namespace tandem::tools
