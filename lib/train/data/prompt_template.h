#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "train/data/records.h"
#include "train/data/settings.h"

namespace tandem::train {

/// The texts of a template, with {instruction}, {input}, {output} and {eos} to be filled in.
struct PromptTexts {
  std::string prompt, prompt_with_input, answer;
  bool drops_end_marks = false;  // "</s>" is taken out of outputs
};

/// Those of a built-in template: alpaca, plain, or as the S2FT program has them.
PromptTexts builtin_texts(TemplateName name);

/// The first mistake in a text of a template, a name in braces that stands for nothing; empty if
/// there is none. Braces around other than lower-case letters are text.
std::string template_problem(std::string_view text);

/// Writes records as text and marks the answers.
class RecordWriter {
 public:
  /// The model's chat template writes chats, and instructions under template chat.
  /// model_folder   of the chat template; empty: there is none
  RecordWriter(const DataSettings& settings, const text::Tokenizer& tokenizer,
               const std::filesystem::path& model_folder, text::ChatSettings chat);

  /// The text; its answers are the part that the loss counts, unless data.mask says all.
  /// errors   kind input at record.where: a chat that the template cannot write, a model without a
  ///          chat template
  text::RenderedChat write(const Record& record) const;
  /// The text that a model is to answer: write's before the answer to an instruction. The
  /// chat template opens the assistant's turn at its end.
  /// errors   as write
  std::string prompt(const Instruction& question, const std::string& where) const;
  /// Whether the chat template writes it, control tokens in front included.
  bool is_chat(const Record& record) const;

 private:
  text::RenderedChat write_instruction(const Instruction& record, const std::string& where) const;
  std::string filled_prompt(Instruction fields) const;
  text::RenderedChat write_chat(const Chat& chat, const std::string& where) const;
  text::RenderedChat write_document(const Document& document) const;
  const text::ChatTemplate& chat_template(const std::string& where) const;

  TemplateName name_;
  PromptTexts texts_;
  std::string eos_;
  std::optional<text::ChatTemplate> chat_;
  std::optional<Error> no_chat_;  // why there is no chat template
};

}  // namespace tandem::train
