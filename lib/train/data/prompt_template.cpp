#include "train/data/prompt_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/quote.h"

namespace tandem::train {
namespace {

constexpr std::array<std::string_view, 4> kFields = {"instruction", "input", "output", "eos"};

constexpr const char* kHeader =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.";
constexpr const char* kHeaderWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.";

/// The name that stands in braces at the front of a text; nullopt if nothing of that form does.
std::optional<std::string_view> braced_name(std::string_view text) {
  const size_t close = text.find('}');
  if (!text.starts_with('{') || close == std::string_view::npos || close == 1) return std::nullopt;
  const std::string_view name = text.substr(1, close - 1);
  const bool is_name = std::ranges::all_of(name, [](char c) { return c >= 'a' && c <= 'z'; });
  return is_name ? std::optional(name) : std::nullopt;
}

/// A template's text with its fields in place of their names, each copied as it is.
std::string filled(std::string_view text, const Instruction& record, std::string_view eos) {
  std::string out;
  while (!text.empty()) {
    const size_t n = std::min(text.find('{', text.front() == '{' ? 1 : 0), text.size());
    const auto name = braced_name(text);
    if (!name) {
      out += text.substr(0, n);
      text.remove_prefix(n);
      continue;
    }
    if (*name == "instruction") out += record.instruction;
    if (*name == "input") out += record.input;
    if (*name == "output") out += record.output;
    if (*name == "eos") out += eos;
    text.remove_prefix(name->size() + 2);
  }
  return out;
}

void erase_all(std::string& text, std::string_view part) {
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
}

std::string with_input(const Instruction& record) {
  return record.input.empty() ? record.instruction : record.instruction + "\n\n" + record.input;
}

}  // namespace

PromptTexts builtin_texts(TemplateName name) {
  const std::string header = kHeader, spaces(16, ' ');
  if (name == TemplateName::alpaca)
    return {.prompt = header + "\n\n### Instruction:\n{instruction}\n\n### Response:\n",
            .prompt_with_input =
                kHeaderWithInput + std::string("\n\n### Instruction:\n{instruction}\n\n### "
                                               "Input:\n{input}\n\n### Response:\n"),
            .answer = "{output}{eos}"};
  // The S2FT program has the header without an input in front of records with one too, ends it with
  // spaces, and evaluates under a prompt with other white space than it trains with.
  if (name == TemplateName::s2ft_train)
    return {.prompt = "<s> " + header + "  \n\n### Instruction:\n{instruction}\n" + spaces +
                      "\n### Response:\n",
            .prompt_with_input = "<s> " + header +
                                 "  \n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n" +
                                 spaces + "\n### Response:\n",
            .answer = "{output} {eos}",
            .drops_end_marks = true};
  if (name == TemplateName::s2ft_eval)
    return {.prompt = "<s> " + header + " \n\n### Instruction:\n{instruction}\n\n### Response:\n",
            .prompt_with_input = {},
            .answer = "{output} {eos}",
            .drops_end_marks = true};
  return {.prompt = "{instruction}\n",
          .prompt_with_input = "{instruction}\n{input}\n",
          .answer = "{output}{eos}"};
}

std::string template_problem(std::string_view text) {
  for (size_t at = 0; (at = text.find('{', at)) != std::string_view::npos; ++at)
    if (const auto name = braced_name(text.substr(at));
        name && std::ranges::find(kFields, *name) == kFields.end())
      return fmt::format("unknown field {}; expected one of {{{}}}",
                         io::quote(text.substr(at, name->size() + 2), 40),
                         fmt::join(kFields, "}, {"));
  return {};
}

RecordWriter::RecordWriter(const DataSettings& settings, const text::Tokenizer& tokenizer,
                           const std::filesystem::path& model_folder, text::ChatSettings chat)
    : name_(settings.template_name) {
  if (name_ == TemplateName::custom)
    texts_ = {settings.custom.prompt, settings.custom.prompt_with_input, settings.custom.answer};
  else if (name_ != TemplateName::chat)
    texts_ = builtin_texts(name_);
  if (tokenizer.eos_id()) eos_ = tokenizer.token_bytes(*tokenizer.eos_id());
  try {
    chat_ = text::load_chat_template(model_folder, tokenizer, std::move(chat));
  } catch (const Error& e) {
    no_chat_ = e;  // reported where a chat comes
  }
}

const text::ChatTemplate& RecordWriter::chat_template(const std::string& where) const {
  if (chat_) return *chat_;
  Error e = *no_chat_;
  e.add_context("for the chat in " + where);
  throw e;
}

bool RecordWriter::is_chat(const Record& record) const {
  return std::holds_alternative<Chat>(record.content) ||
         (name_ == TemplateName::chat && std::holds_alternative<Instruction>(record.content));
}

text::RenderedChat RecordWriter::write(const Record& record) const {
  if (const auto* instruction = std::get_if<Instruction>(&record.content))
    return write_instruction(*instruction, record.where);
  if (const auto* chat = std::get_if<Chat>(&record.content)) return write_chat(*chat, record.where);
  return write_document(std::get<Document>(record.content));
}

text::RenderedChat RecordWriter::write_instruction(const Instruction& record,
                                                   const std::string& where) const {
  if (name_ == TemplateName::chat) {
    text::RenderedChat chat =
        write_chat({{"user", with_input(record)}, {"assistant", record.output}}, where);
    if (record.output.empty()) chat.answers.clear();
    return chat;
  }
  Instruction fields = record;
  if (texts_.drops_end_marks) erase_all(fields.output, "</s>");
  text::RenderedChat written;
  written.text = filled_prompt(fields);
  const size_t begin = written.text.size();
  written.text += filled(texts_.answer, fields, eos_);
  // An empty answer would teach a model to say nothing.
  if (!fields.output.empty()) written.answers.push_back({begin, written.text.size()});
  return written;
}

std::string RecordWriter::filled_prompt(Instruction fields) const {
  std::string_view prompt = texts_.prompt;
  if (!fields.input.empty()) {
    if (texts_.prompt_with_input.empty())
      fields.instruction = with_input(fields);
    else
      prompt = texts_.prompt_with_input;
  }
  return filled(prompt, fields, eos_);
}

std::string RecordWriter::prompt(const Instruction& question, const std::string& where) const {
  if (name_ != TemplateName::chat) return filled_prompt(question);
  return chat_template(where).prompt({{"user", with_input(question)}}, where).text;
}

text::RenderedChat RecordWriter::write_chat(const Chat& chat, const std::string& where) const {
  return chat_template(where).sample(chat, where);
}

text::RenderedChat RecordWriter::write_document(const Document& document) const {
  text::RenderedChat written;
  written.text = document.text;
  if (document.ends) written.text += eos_;
  written.answers.push_back({0, written.text.size()});
  return written;
}

}  // namespace tandem::train
