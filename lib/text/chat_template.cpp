#include "text/chat_template.h"

#include "base/error.h"
#include "io/quote.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

void check_messages(std::span<const ChatMessage> messages, const std::string& where) {
  if (messages.empty()) throw input_error(where, "there is no message");
  for (const ChatMessage& message : messages)
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
      throw input_error(where, "unknown role {}, expected system, user or assistant",
                        io::quote(message.role));
}

void check_turns(std::span<const ChatMessage> messages, const std::string& where) {
  if (messages.empty()) throw input_error(where, "there is no user message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const char* expected = i % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected)
      throw input_error(where, "message {} after the system message has the role {}, expected '{}'",
                        i + 1, io::quote(messages[i].role), expected)
          .hint("this template takes one optional system message, then user and assistant in turn");
  }
}

std::string content_of(const ChatTemplate& form, const ChatMessage& message) {
  return std::string(form.trims_content ? trim(message.content) : message.content);
}

/// The system message, if the chat begins with one, which is taken off.
std::optional<std::string> take_system(std::span<const ChatMessage>& messages) {
  if (messages.front().role != "system") return std::nullopt;
  std::string content = messages.front().content;
  messages = messages.subspan(1);
  return content;
}

std::string render_llama_2(const ChatTemplate& form, std::span<const ChatMessage> messages,
                           const std::string& where) {
  const auto system = take_system(messages);
  check_turns(messages, where);
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string content = messages[i].content;
    if (i == 0 && system) content = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n{}", *system, content);
    const std::string_view trimmed = trim(content);
    if (i % 2 == 0)
      text += fmt::format("{}[INST] {} [/INST]", form.bos, trimmed);
    else
      text += fmt::format(" {} {}", trimmed, form.eos);
  }
  return text;
}

std::string llama_3_turn(std::string_view role, std::string_view content) {
  return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", role, content);
}

std::string render_llama_3(const ChatTemplate& form, std::span<const ChatMessage> messages,
                           const ChatOptions& options) {
  std::string text = form.begins_with_bos ? form.bos : "";
  if (!form.knowledge_date.empty()) {
    const std::string system = take_system(messages).value_or("");
    text += llama_3_turn(
        "system",
        fmt::format("Cutting Knowledge Date: {}\nToday Date: {}\n\n{}", form.knowledge_date,
                    options.date.empty() ? form.today : options.date, trim(system)));
  }
  for (const ChatMessage& message : messages)
    text += llama_3_turn(message.role, content_of(form, message));
  if (options.add_generation_prompt || form.always_prompts)
    text += "<|start_header_id|>assistant<|end_header_id|>\n\n";
  return text;
}

std::string render_chatml(const ChatTemplate& form, std::span<const ChatMessage> messages,
                          const ChatOptions& options) {
  const auto turn = [](std::string_view role, std::string_view content) {
    return fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
  };
  std::string text = form.begins_with_bos ? form.bos : "";
  if (form.default_system && messages.front().role != "system")
    text += turn("system", *form.default_system);
  for (const ChatMessage& message : messages) text += turn(message.role, content_of(form, message));
  if (options.add_generation_prompt || form.always_prompts) text += "<|im_start|>assistant\n";
  return text;
}

std::string render_mistral(const ChatTemplate& form, std::span<const ChatMessage> messages,
                           const std::string& where) {
  const auto system = take_system(messages);
  if (system && form.system == ChatTemplate::System::refused)
    throw input_error(where, "this model's template has no place for a system message")
        .hint("put its text at the start of the first user message");
  check_turns(messages, where);
  const size_t system_at =
      form.system == ChatTemplate::System::last_user ? messages.size() - 1 : size_t{0};
  std::string text = form.begins_with_bos ? form.bos : "";
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i % 2 == 0)
      text +=
          fmt::format("{}{}{}{}{}", form.user_open, system && i == system_at ? *system : "",
                      system && i == system_at ? "\n\n" : "", messages[i].content, form.user_close);
    else
      text += fmt::format("{}{}{}{}", form.assistant_open, content_of(form, messages[i]), form.eos,
                          form.assistant_close);
  }
  return text;
}

}  // namespace

RenderedChat ChatTemplate::render(std::span<const ChatMessage> messages,
                                  const ChatOptions& options) const {
  check_messages(messages, options.where);
  std::string text;
  switch (family) {
    case ChatFamily::llama_2:
      text = render_llama_2(*this, messages, options.where);
      break;
    case ChatFamily::llama_3:
      text = render_llama_3(*this, messages, options);
      break;
    case ChatFamily::chatml:
      text = render_chatml(*this, messages, options);
      break;
    case ChatFamily::mistral:
      text = render_mistral(*this, messages, options.where);
      break;
  }
  const bool has_bos = !bos.empty() && text.starts_with(bos);
  return {std::move(text), has_bos};
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat) {
  return tokenizer.encode(chat.text, {.add_bos = false, .parse_special = true});
}

}  // namespace tandem::text
