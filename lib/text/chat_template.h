#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

class Tokenizer;

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
  std::optional<std::string> reasoning = {};  // of an assistant, where it is not part of content
};

struct ChatOptions {
  bool add_generation_prompt = true;  // end with the opening of the assistant's turn
  std::string date{};              // llama-3.1 and later: "Today Date"; empty: the template's own
  std::optional<bool> thinking{};  // unset: as the template has it by itself
  std::string where = "chat";      // the messages, as errors name them
};

/// A part of a text, in bytes.
struct TextSpan {
  size_t begin = 0, end = 0;
};

struct RenderedChat {
  std::string text;               // whole: nothing is to be put in front of its ids
  bool has_bos = false;           // the text itself begins with BOS
  std::vector<TextSpan> answers;  // all that the assistant writes, ends of turns included
};

enum class ChatFamily : uint8_t { llama_2, llama_3, chatml, mistral };

/// How a chatml template treats reasoning: that of answers before the last question is left out,
/// later reasoning stands between <think> and </think> before the answer.
struct Thinking {
  // What follows the opening of the assistant's turn in a prompt; absent: it has no such mode.
  std::optional<std::string> on, off;
};

/// How a chat is written as one text. No Jinja engine: four families are known, and what varies
/// within a family is read from the literals of the checkpoint's own template.
struct ChatTemplate {
  ChatFamily family = ChatFamily::chatml;
  std::string bos, eos;                       // as text; empty where the tokenizer has none
  bool begins_with_bos = false;               // llama-2 repeats it before every user turn
  bool trims_content = false;                 // white space around each message goes
  bool always_prompts = false;                // opens the assistant's turn even when not asked to
  std::optional<std::string> default_system;  // chatml: used when the chat has no system message
  std::optional<Thinking> thinking;           // chatml: Qwen3
  std::string knowledge_date, today;          // llama-3.1 and later; empty for none
  std::string user_open, user_close, assistant_open, assistant_close;  // mistral
  enum class System : uint8_t {
    refused,
    first_user,
    last_user
  } system = System::refused;  // mistral

  /// The text that Hugging Face's apply_chat_template makes of the same messages. Where a template
  /// asks for the clock (llama-3.2), its fixed fallback date is used instead unless `date` is
  /// given, so that equal inputs give equal tokens.
  /// errors   kind input at options.where: no message, an unknown role, roles out of turn, a system
  ///          message where the template has none; kind recipe at chat.thinking: the template
  ///          cannot do what options.thinking asks for
  RenderedChat render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
};

/// Recognises a Jinja template; `where` names its file.
/// errors   kind input: none of the four families (named in the message), or an unknown variant of
///          one, including of its reasoning
ChatTemplate recognise_chat_template(std::string_view jinja, const Tokenizer& tokenizer,
                                     const std::string& where);
/// Template of a model folder: chat_template.jinja or tokenizer_config.json.
/// errors   kind input: the model has none, or as recognise_chat_template
ChatTemplate load_chat_template(const std::filesystem::path& model_folder,
                                const Tokenizer& tokenizer);

}  // namespace tandem::text
