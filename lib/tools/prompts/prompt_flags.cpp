#include "tools/prompts/prompt_flags.h"

#include <unistd.h>

namespace tandem::tools {
namespace {

void require_piped_stdin() {
  if (::isatty(STDIN_FILENO) == 1)
    throw usage_error("-", "standard input is a terminal").hint("pipe a file in, or name one");
}

}  // namespace

std::vector<cli::Flag> prompt_flags() {
  return {
      {.names = "-p,--prompt", .value = "TEXT", .text = "the prompt; follows the document of -f"},
      {.names = "-f,--file",
       .value = "FILE",
       .text = "a document to read first, - = standard input"},
      {.names = "--prompt-ids", .value = "FILE", .text = "JSON array of token ids, used as it is"},
      {.names = "--questions", .value = "FILE", .text = "one question a line about the document"},
      {.names = "--prompts",
       .value = "FILE",
       .text = "JSONL batch: {\"prompt\"}, {\"ids\"} or {\"messages\"}, and \"adapter\""},
      {.names = "--chat", .value = "", .text = "write the prompt in the model's chat template"},
      {.names = "-n,--max-tokens",
       .value = "N",
       .text = "new tokens of a sequence, at most",
       .key = "sampling.max_tokens"},
      {.names = "--stop",
       .value = "TEXT",
       .text = "text that ends a sequence; repeatable",
       .key = "sampling.stop"},
      {.names = "--stop-id",
       .value = "N",
       .text = "token id that ends a sequence; repeatable",
       .key = "sampling.stop_ids"}};
}

decode::PromptSource prompt_source(const cli::Context& cx, const recipe::Chat& chat,
                                   bool has_other_text) {
  decode::PromptSource s;
  s.text = cx.value("prompt");
  const auto path = [&](const char* flag) {
    const auto v = cx.value(flag);
    return v ? std::optional<std::filesystem::path>(*v) : std::nullopt;
  };
  s.document = path("file");
  s.ids = path("prompt-ids");
  s.questions = path("questions");
  s.prompts = path("prompts");
  s.chat = cx.is_set("chat");
  s.chat_how = chat;
  if (chat.thinking && !s.chat && !s.prompts)
    throw recipe_error("chat.thinking", "no prompt is written in the chat template")
        .hint("add --chat, or give {\"messages\"} with --prompts");
  for (const auto& p : {s.document, s.ids, s.questions, s.prompts})
    if (p == "-") require_piped_stdin();
  if (s.empty() && !has_other_text && !cx.dry_run())
    throw usage_error("prompt", "nothing to continue")
        .hint("give -p TEXT, -f FILE, --prompt-ids FILE, --questions FILE or --prompts FILE");
  return s;
}

void require_same(cli::Context& cx, const decode::PromptSet& prompts) {
  if (!prompts.date.empty())
    cx.note(fmt::format("chat.date: the chat template writes {} as today", prompts.date));
  if (cx.group()) cx.group()->require_equal("prompts", decode::fingerprint_of(prompts));
}

void refuse_states(const recipe::Model& model, const recipe::Output& output, recipe::Problems& p) {
  if (!model.state.empty()) p.field("model.state", "model.state: states are read by pig-generate");
  if (!output.state.empty())
    p.field("output.state", "output.state: states are saved by pig-generate");
}

decode::GenerateSpec generate_spec(const recipe::Sampling& s, int64_t seed, int top_logprobs,
                                   const model::ModelConfig& config, int max_context) {
  decode::GenerateSpec g;
  g.sampler.rule = {.temperature = static_cast<float>(s.temperature),
                    .top_k = s.top_k,
                    .top_p = s.top_p,
                    .min_p = s.min_p,
                    .repetition_penalty = static_cast<float>(s.repetition_penalty)};
  g.sampler.seed = seed;
  g.sampler.top_logprobs = top_logprobs;
  g.max_tokens = s.max_tokens;
  g.max_context = max_context;
  g.stop_ids.assign(config.eos_ids.begin(), config.eos_ids.end());
  for (const int id : s.stop_ids) {
    if (id >= config.vocab_size)
      throw recipe_error("sampling.stop_ids", "{} is no token of the model, whose ids end at {}", id,
                         config.vocab_size - 1);
    g.stop_ids.push_back(id);
  }
  g.stops = s.stop;
  return g;
}

}  // namespace tandem::tools
