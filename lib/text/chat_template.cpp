#include "text/chat_template.h"

#include <algorithm>

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

void append_answer(RenderedChat& chat, std::string_view answer) {
  const size_t begin = chat.text.size();
  chat.text += answer;
  chat.answers.push_back({begin, chat.text.size()});
}

RenderedChat render_llama_2(const ChatTemplate& form, std::span<const ChatMessage> messages,
                            const std::string& where) {
  const auto system = take_system(messages);
  check_turns(messages, where);
  RenderedChat chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string content = messages[i].content;
    if (i == 0 && system) content = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n{}", *system, content);
    const std::string_view trimmed = trim(content);
    if (i % 2 == 0)
      chat.text += fmt::format("{}[INST] {} [/INST]", form.bos, trimmed);
    else
      append_answer(chat, fmt::format(" {} {}", trimmed, form.eos));
  }
  return chat;
}

std::string llama_3_header(std::string_view role) {
  return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
}

RenderedChat render_llama_3(const ChatTemplate& form, std::span<const ChatMessage> messages,
                            const ChatOptions& options) {
  RenderedChat chat;
  if (form.begins_with_bos) chat.text = form.bos;
  if (!form.knowledge_date.empty()) {
    const std::string system = take_system(messages).value_or("");
    chat.text += llama_3_header("system");
    chat.text += fmt::format("Cutting Knowledge Date: {}\nToday Date: {}\n\n{}<|eot_id|>",
                             form.knowledge_date, options.date.empty() ? form.today : options.date,
                             trim(system));
  }
  for (const ChatMessage& message : messages) {
    chat.text += llama_3_header(message.role);
    const std::string content = content_of(form, message) + "<|eot_id|>";
    if (message.role == "assistant")
      append_answer(chat, content);
    else
      chat.text += content;
  }
  if (options.add_generation_prompt || form.always_prompts)
    chat.text += llama_3_header("assistant");
  return chat;
}

/// The text between two places, or to its ends; as Python's split and strip do it.
std::string_view after_last(std::string_view text, std::string_view mark) {
  const size_t at = text.rfind(mark);
  return at == text.npos ? text : text.substr(at + mark.size());
}
std::string_view without_leading_breaks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}
std::string_view without_trailing_breaks(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);  // npos + 1 is 0
}

/// An assistant's message with its reasoning taken out of the content.
ChatMessage split_reasoning(const ChatMessage& message) {
  constexpr std::string_view kClose = "</think>";
  const std::string_view content = message.content;
  const size_t close = content.find(kClose);
  if (message.reasoning || close == content.npos) return message;
  const std::string_view thought = without_trailing_breaks(content.substr(0, close));
  return {.role = message.role,
          .content = std::string(without_leading_breaks(after_last(content, kClose))),
          .reasoning = std::string(without_leading_breaks(after_last(thought, "<think>")))};
}

/// Index of the last question: a user's message that is no answer of a tool. Where there is none,
/// the last message counts.
size_t last_question(std::span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;)
    if (const ChatMessage& m = messages[i];
        m.role == "user" &&
        !(m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>")))
      return i;
  return messages.size() - 1;
}

/// What an assistant's turn says: reasoning of answers to earlier questions is left out.
std::string answer_of(std::span<const ChatMessage> messages, size_t i) {
  const ChatMessage answer = split_reasoning(messages[i]);
  const std::string_view thought = answer.reasoning ? *answer.reasoning : std::string_view();
  const bool shows = i + 1 == messages.size() || !thought.empty();
  if (i <= last_question(messages) || !shows) return answer.content;
  return fmt::format("<think>\n{}\n</think>\n\n{}",
                     without_leading_breaks(without_trailing_breaks(thought)),
                     without_leading_breaks(answer.content));
}

/// What follows the opening of the assistant's turn in a prompt.
std::string_view opening_thought(const ChatTemplate& form, const ChatOptions& options) {
  if (!form.thinking) return {};
  const Thinking& t = *form.thinking;
  return options.thinking.value_or(t.on.has_value()) ? *t.on : *t.off;
}

void check_thinking(const ChatTemplate& form, const ChatOptions& options) {
  if (!options.thinking) return;
  const auto refuse = [](const char* what) {
    throw recipe_error("chat.thinking", "{}", what).hint("leave chat.thinking out");
  };
  if (!form.thinking) refuse("the model's chat template knows no thinking");
  if (*options.thinking && !form.thinking->on)
    refuse("the model's chat template has no place for thinking: expected false, found true");
  if (!*options.thinking && !form.thinking->off)
    refuse("the model always thinks: expected true, found false");
}

RenderedChat render_chatml(const ChatTemplate& form, std::span<const ChatMessage> messages,
                           const ChatOptions& options) {
  RenderedChat chat;
  const auto turn = [&](std::string_view role, std::string_view content) {
    chat.text += fmt::format("<|im_start|>{}\n", role);
    const std::string ended = fmt::format("{}<|im_end|>", content);
    if (role == "assistant")
      append_answer(chat, ended);
    else
      chat.text += ended;
    chat.text += "\n";
  };
  if (form.begins_with_bos) chat.text = form.bos;
  if (form.default_system && messages.front().role != "system")
    turn("system", *form.default_system);
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool reasons = form.thinking && messages[i].role == "assistant";
    turn(messages[i].role, reasons ? answer_of(messages, i) : content_of(form, messages[i]));
  }
  if (options.add_generation_prompt || form.always_prompts)
    chat.text.append("<|im_start|>assistant\n").append(opening_thought(form, options));
  return chat;
}

RenderedChat render_mistral(const ChatTemplate& form, std::span<const ChatMessage> messages,
                            const std::string& where) {
  const auto system = take_system(messages);
  if (system && form.system == ChatTemplate::System::refused)
    throw input_error(where, "this model's template has no place for a system message")
        .hint("put its text at the start of the first user message");
  check_turns(messages, where);
  const size_t system_at =
      form.system == ChatTemplate::System::last_user ? messages.size() - 1 : size_t{0};
  RenderedChat chat;
  if (form.begins_with_bos) chat.text = form.bos;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i % 2 == 0) {
      chat.text +=
          fmt::format("{}{}{}{}{}", form.user_open, system && i == system_at ? *system : "",
                      system && i == system_at ? "\n\n" : "", messages[i].content, form.user_close);
    } else {
      append_answer(chat, fmt::format("{}{}{}", form.assistant_open, content_of(form, messages[i]),
                                      form.eos));
      chat.text += form.assistant_close;
    }
  }
  return chat;
}

}  // namespace

RenderedChat ChatTemplate::render(std::span<const ChatMessage> messages,
                                  const ChatOptions& options) const {
  check_messages(messages, options.where);
  check_thinking(*this, options);
  RenderedChat chat;
  switch (family) {
    case ChatFamily::llama_2:
      chat = render_llama_2(*this, messages, options.where);
      break;
    case ChatFamily::llama_3:
      chat = render_llama_3(*this, messages, options);
      break;
    case ChatFamily::chatml:
      chat = render_chatml(*this, messages, options);
      break;
    case ChatFamily::mistral:
      chat = render_mistral(*this, messages, options.where);
      break;
  }
  chat.has_bos = !bos.empty() && chat.text.starts_with(bos);
  return chat;
}

}  // namespace tandem::text
