#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/jinja/template.h"

namespace tandem::text {

class Tokenizer;

/// What strftime_now writes unless a date is set: equal inputs then give equal tokens.
inline constexpr const char* kChatDate = "2024-07-26";

/// How chats are written, apart from the template itself.
struct ChatSettings {
  std::filesystem::path choice{};  // a file, or the name of one of the model's; empty: its default
  std::string date = kChatDate;    // YYYY-MM-DD
  std::optional<bool> thinking{};  // unset: as the template has it by itself
  std::filesystem::path tools{}, documents{};  // JSON files, for chats without their own
  std::vector<std::pair<std::string, jinja::Value>> variables{};
};

/// A part of a text, in bytes.
struct TextSpan {
  size_t begin = 0, end = 0;
};

struct RenderedChat {
  std::string text;               // whole: its ids need no prefix such as BOS
  std::vector<TextSpan> answers;  // what training counts, ends of turns included
  bool has_date = false;          // the template wrote the date
};

/// Writes chats as transformers' apply_chat_template does: the model's own Jinja template is
/// evaluated.
class ChatTemplate {
 public:
  /// tokens    bos_token, eos_token and others, by name
  /// special   the control tokens as text, one of which ends a turn
  /// errors    kind input: the template does not parse; kind recipe at chat.thinking: the template
  ///           reads no variable for it
  ChatTemplate(std::string_view jinja, const std::string& where, ChatSettings settings,
               std::vector<std::pair<std::string, jinja::Value>> tokens = {},
               std::vector<std::string> special = {});

  /// For chats that have tools.
  void use_with_tools(jinja::Template other) { with_tools_ = std::move(other); }

  /// A prompt: it ends with the opening of the assistant's turn.
  /// where    names the chat in errors
  /// errors   as jinja::Template::render; kind input: parts of content that the template cannot write
  RenderedChat prompt(const Chat& chat, const std::string& where) const {
    return rendered(chat, true, where);
  }

  /// A chat to learn from, with the answers that it marks as learned: the spans of the template's
  /// generation tags; without these, each from the end of its prompt to the end of its turn.
  /// errors   as prompt; kind input: the answers cannot be found
  RenderedChat sample(const Chat& chat, const std::string& where) const;

 private:
  RenderedChat rendered(const Chat& chat, bool open, const std::string& where) const;
  jinja::Rendered evaluated(const Chat& chat, bool open, const std::string& where) const;
  TextSpan answer(const Chat& chat, size_t i, const std::string& text,
                  const std::string& where) const;
  /// Where an answer begins, by what changes with its content; npos: it is not written as it is.
  size_t content_begin(const Chat& chat, size_t i, std::string_view text, std::string_view prompt,
                       const std::string& where) const;
  size_t after_special(std::string_view text, size_t from, bool last) const;

  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;
  ChatSettings settings_;
  jinja::Value tools_, documents_;
  std::vector<std::pair<std::string, jinja::Value>> tokens_;
  std::vector<std::string> special_;
};

/// The template of a model folder: chat_template.jinja with additional_chat_templates/, else
/// `chat_template` of tokenizer_config.json (a text, or several by name), else chat_template.json.
/// settings.choice names one of several, or a file that is used in their place; without it, chats
/// with tools are written by the template `tool_use` if there is one.
/// errors   kind input: the model has none; kind recipe at chat.template: it has none of that name
ChatTemplate load_chat_template(const std::filesystem::path& model_folder,
                                const Tokenizer& tokenizer, ChatSettings settings = {});
/// The text of a folder's template that chats without tools have; nothing where there is none.
std::optional<std::string> default_chat_template(const std::filesystem::path& model_folder);

}  // namespace tandem::text
