#include "tools/prompts/prompt_flags.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/search_path.h"
#include "decode/suggested_sampling.h"

namespace tandem::tools {
namespace {

void require_piped_stdin() {
  if (::isatty(STDIN_FILENO) == 1)
    throw usage_error("-", "standard input is a terminal").hint("pipe a file in, or name one");
}

/// The values that are set, as "temperature 0.6, top_p 0.9".
std::string text_of(const recipe::Sampling& s) {
  std::vector<std::string> values;
  const auto add = [&](const char* key, const auto& value) {
    if (value) values.push_back(fmt::format("{} {}", key, *value));
  };
  add("temperature", s.temperature);
  add("top_k", s.top_k);
  add("top_p", s.top_p);
  add("min_p", s.min_p);
  add("repetition_penalty", s.repetition_penalty);
  return fmt::format("{}", fmt::join(values, ", "));
}

}  // namespace

std::vector<cli::Flag> prompt_flags() {
  return {
      {.names = "-p,--prompt",
       .value = "TEXT",
       .text = "prompt, also as an argument, - = standard input, appended to the document of -f"},
      {.names = "-f,--file",
       .value = "FILE",
       .text = "document before the prompt, - = standard input"},
      {.names = "--prompt-ids", .value = "FILE", .text = "prompt as a JSON array of token ids"},
      {.names = "--questions",
       .value = "FILE",
       .text = "questions about the document, one per line"},
      {.names = "--prompts",
       .value = "FILE",
       .text = "JSONL batch of {\"prompt\"}, {\"ids\"} or {\"messages\", \"tools\"}, optionally "
               "with \"adapter\" (a name) and \"id\" (copied by --format results)"},
      {.names = "--chat",
       .value = "",
       .text = "put the prompt into the chat template as a user message. Without a prompt, "
               "the programs that generate text start a chat on the terminal"},
      {.names = "--system", .value = "TEXT", .text = "system message for --chat"},
      {.names = "-n,--max-tokens",
       .value = "N",
       .text = "maximum number of new tokens per sequence",
       .key = "sampling.max_tokens"},
      {.names = "--stop",
       .value = "TEXT",
       .text = "text or special token that ends a sequence, repeatable",
       .key = "sampling.stop"},
      {.names = "--stop-id",
       .value = "N",
       .text = "token id that ends a sequence, repeatable",
       .key = "sampling.stop_ids"},
      {.names = "--temperature,--temp",
       .value = "T",
       .text = "softmax temperature, 0 = greedy",
       .key = "sampling.temperature"},
      {.names = "--top-k",
       .value = "K",
       .text = "number of most likely tokens to sample from, 0 = all",
       .key = "sampling.top_k"},
      {.names = "--top-p",
       .value = "P",
       .text = "total probability of the smallest set of tokens to sample from, 1 = all",
       .key = "sampling.top_p"},
      {.names = "--min-p",
       .value = "P",
       .text = "smallest probability of a sampled token, as a share of the largest, 0 = off",
       .key = "sampling.min_p"}};
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
  if (s.text == "-") {
    if (s.document)
      throw usage_error("--prompt",
                        "is - (standard input), which cannot follow the document of --file")
          .hint(
              "give the text with -p TEXT; only the document can be read from standard input, with "
              "-f -");
    s.document = "-";
    s.text.reset();
  }
  s.ids = path("prompt-ids");
  s.questions = path("questions");
  s.prompts = path("prompts");
  s.chat = cx.is_set("chat");
  s.system = cx.value("system");
  s.chat_how = chat;
  if (s.system && (!s.chat || s.prompts || s.ids))
    throw usage_error("--system", "needs a chat whose message is on the command line")
        .hint(s.prompts ? "in each line, write a message with role system"
                        : "add --chat and -p, -f or --questions");
  if (chat.thinking && !s.empty() && !s.chat && !s.prompts)
    throw recipe_error("chat.thinking", "needs a chat, but no prompt uses the chat template")
        .hint("add --chat, or put {\"messages\"} in lines of --prompts");
  for (const auto& p : {s.document, s.ids, s.questions, s.prompts})
    if (p == "-") require_piped_stdin();
  const bool converses = s.chat && cx.info.line_reader != nullptr;
  const auto is_terminal = [](int fd) { return ::isatty(fd) == 1; };
  if (s.empty() && converses && !cx.dry_run() &&
      !(is_terminal(STDIN_FILENO) && is_terminal(STDERR_FILENO)))
    throw usage_error("--chat", "expected a terminal to chat on, but standard {} is not a terminal",
                      is_terminal(STDIN_FILENO) ? "error" : "input")
        .hint("give one message with -p TEXT or -f -, or several turns with --prompts FILE");
  if (s.empty() && !has_other_text && !converses && !cx.dry_run())
    throw usage_error("prompt", "expected a prompt, found none")
        .hint(s.chat
                  ? "give the message with -p TEXT, or chat on a terminal with pig-generate --chat"
                  : "give -p TEXT, -f FILE (- = standard input), --prompt-ids FILE, "
                    "--questions FILE or --prompts FILE");
  return s;
}

void require_same(cli::Context& cx, const decode::PromptSet& prompts) {
  if (!prompts.date.empty())
    cx.note(fmt::format("chat.date: the chat template uses {} as the current date", prompts.date));
  if (cx.group()) cx.group()->require_equal("prompts", decode::fingerprint_of(prompts));
}

recipe::Sampling settled_sampling(const cli::Context& cx, const recipe::Sampling& sampling,
                                  const decode::ModelFiles& model) {
  if (!sampling.stop.empty() && !model.tokenizer)
    throw recipe_error("sampling.stop", "stop texts need a tokenizer, but {} has none", model.name)
        .hint("end sequences at token ids with --stop-id N");
  recipe::Sampling s = sampling;
  if (s.from == recipe::SamplingFrom::recipe) return s;
  decode::fill(s, decode::suggested_sampling(model.folder));
  if (cx.group()) cx.group()->require_equal("sampling of generation_config.json", text_of(s));
  return s;
}

void note_sampling(cli::Context& cx, const recipe::Sampling& sampling,
                   const decode::ModelFiles& model) {
  if (sampling.from == recipe::SamplingFrom::model) {
    const std::string text = text_of(settled_sampling(cx, sampling, model));
    cx.note(fmt::format("sampling {}",
                        text.empty() ? "is greedy, without a generation_config.json" : text));
    return;
  }
  if (sampling.is_set()) return;
  recipe::Sampling suggested;
  try {
    suggested = decode::suggested_sampling(model.folder);
  } catch (const Error&) {
    return;  // values that cannot be used are no suggestion; sampling.from=model refuses them
  }
  if (suggested.temperature.value_or(0) > 0 || suggested.repetition_penalty)
    cx.note(
        fmt::format("generation_config.json suggests {}. To use these values: -s "
                    "sampling.from=model",
                    text_of(suggested)));
}

nlohmann::ordered_json sampling_json(const recipe::Sampling& s) {
  const ops::SampleRule off;
  return {{"temperature", s.temperature.value_or(off.temperature)},
          {"top_k", s.top_k.value_or(off.top_k)},
          {"top_p", s.top_p.value_or(off.top_p)},
          {"min_p", s.min_p.value_or(off.min_p)},
          {"repetition_penalty", s.repetition_penalty.value_or(off.repetition_penalty)}};
}

void refuse_model_sampling(const recipe::Sampling& sampling, recipe::Problems& p) {
  if (sampling.from == recipe::SamplingFrom::model)
    p.field(
        "sampling.from",
        "sampling.from: this tool does not read generation_config.json; set the values yourself");
}

std::filesystem::path data_text(const recipe::Data& data) {
  if (!data.path.empty()) return data.path;
  for (const auto& folder : cli::recipe_folders())
    if (const auto path = folder / "demo/lighthouse-logbook.txt"; std::filesystem::exists(path))
      return path;
  throw input_error("data.path", "the built-in text is not installed")
      .hint("name a text with -s data.path=FILE");
}

}  // namespace tandem::tools
