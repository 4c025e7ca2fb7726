#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "io/quote.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

const jinja::Value* key_of(const jinja::Value& message, std::string_view key) {
  return message.dict()->named(key);
}

bool has_role(const jinja::Value& message, std::string_view role) {
  const jinja::Value* found = key_of(message, "role");
  return found != nullptr && found->string() != nullptr && *found->string() == role;
}

/// Content that is a list of parts.
const jinja::Sequence* parts_of(const jinja::Value& message) {
  const jinja::Value* content = key_of(message, "content");
  return content == nullptr ? nullptr : content->sequence();
}

/// The message with its only part as plain text.
jinja::Value with_plain_content(const jinja::Value& message) {
  const jinja::Value& part = parts_of(message)->items[0];
  jinja::Dict plain = *message.dict();
  plain.set("content", part.string() != nullptr ? part : *part.dict()->named("text"));
  return plain;
}

size_t common_length(std::string_view a, std::string_view b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  auto n = static_cast<size_t>(end - a.begin());
  while (n > 0 && n < a.size() && continues_char(a[n])) --n;
  return n;
}

Error not_found(size_t message, const std::string& where) {
  return input_error(where,
                     "the chat template changes the turns before message {} when the answer "
                     "follows, so the answer cannot be located",
                     message + 1)
      .hint("set chat.template=FILE to a template that marks answers with {% generation %}");
}

/// The variable by which templates switch reasoning on and off.
std::string_view thinking_variable(const jinja::Template& t) {
  for (const char* name : {"enable_thinking", "thinking"})
    if (t.reads(name)) return name;
  throw recipe_error("chat.thinking", "the chat template does not read enable_thinking or thinking")
      .hint("leave chat.thinking out, or set the template's variable in chat.variables");
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, const std::string& where, ChatSettings settings,
                           std::vector<std::pair<std::string, jinja::Value>> tokens,
                           std::vector<std::string> special)
    : template_(jinja, where),
      settings_(std::move(settings)),
      tools_(settings_.tools.empty() ? jinja::None{} : read_objects(settings_.tools)),
      documents_(settings_.documents.empty() ? jinja::None{} : read_objects(settings_.documents)),
      tokens_(std::move(tokens)),
      special_(std::move(special)) {
  if (settings_.thinking)
    settings_.variables.emplace_back(thinking_variable(template_), *settings_.thinking);
}

jinja::Rendered ChatTemplate::evaluated(const Chat& chat, bool open,
                                        const std::string& where) const {
  // Later entries replace earlier ones of the same name, as transformers' keyword arguments do.
  std::vector<std::pair<std::string, jinja::Value>> variables = tokens_;
  variables.insert(variables.end(), settings_.variables.begin(), settings_.variables.end());
  variables.emplace_back("messages", chat.messages);
  const jinja::Value& tools = chat.tools.is_none() ? tools_ : chat.tools;
  variables.emplace_back("tools", tools);
  variables.emplace_back("documents", chat.documents.is_none() ? documents_ : chat.documents);
  variables.emplace_back("add_generation_prompt", open);
  try {
    return (with_tools_ && !tools.is_none() ? *with_tools_ : template_)
        .render(variables, settings_.date);
  } catch (Error& e) {
    e.add_context("for the chat in " + where);
    throw;
  }
}

RenderedChat ChatTemplate::rendered(const Chat& chat, bool open, const std::string& where) const {
  const bool has_parts = std::ranges::any_of(
      chat.messages, [](const jinja::Value& m) { return parts_of(m) != nullptr; });
  const auto result = [&](const Chat& c) {
    jinja::Rendered r = evaluated(c, open, where);
    RenderedChat out{std::move(r.text), {}, r.used_date};
    for (const auto& [begin, end] : r.generations) out.answers.push_back({begin, end});
    return out;
  };
  if (!has_parts) return result(chat);
  // A template for plain text prints a list of parts as Python does, or fails on it.
  std::optional<RenderedChat> written;
  try {
    written = result(chat);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::input) throw;
  }
  if (written && written->text.find("{'type': 'text'") == std::string::npos) return *written;
  Chat plain = chat;
  for (jinja::Value& message : plain.messages) {
    if (parts_of(message) == nullptr) continue;
    if (parts_of(message)->items.size() != 1)
      throw input_error(where, "content has {} parts, but the chat template expects one text",
                        parts_of(message)->items.size())
          .hint("write the content as one text");
    message = with_plain_content(message);
  }
  return result(plain);
}

size_t ChatTemplate::after_special(std::string_view text, size_t from, bool last) const {
  size_t best = std::string_view::npos, end = std::string_view::npos;
  for (const std::string& token : special_) {
    const size_t at = last ? text.rfind(token) : text.find(token, from);
    if (at == text.npos || at < from) continue;
    if (best == text.npos || (last ? at > best : at < best)) {
      best = at;
      end = at + token.size();
    }
  }
  return end;
}

size_t ChatTemplate::content_begin(const Chat& chat, size_t i, std::string_view text,
                                   std::string_view prompt, const std::string& where) const {
  const jinja::Value* content = key_of(chat.messages[i], "content");
  if (content == nullptr || content->string() == nullptr) return std::string::npos;
  const std::string_view wanted = trim(*content->string());
  jinja::Dict changed = *chat.messages[i].dict();
  changed.set("content", wanted.starts_with('0') ? "1" : "0");
  Chat other = chat;
  other.messages[i] = std::move(changed);
  const size_t begin = common_length(rendered(other, false, where).text, text);
  if (wanted.empty() || !text.substr(begin).starts_with(wanted)) return std::string::npos;
  // White space in front belongs to the answer, but for what ends the prompt.
  const auto end_of_text = [](std::string_view t) {
    const std::string_view all = trim(t);
    return all.empty() ? size_t{0} : static_cast<size_t>(all.data() + all.size() - t.data());
  };
  const size_t space = end_of_text(text.substr(0, begin));
  const std::string_view opening = prompt.substr(end_of_text(prompt));
  return text.substr(space, begin - space).starts_with(opening) ? space + opening.size() : begin;
}

TextSpan ChatTemplate::answer(const Chat& chat, size_t i, const std::string& text,
                              const std::string& where) const {
  const auto upto = [&](size_t n, bool open) {
    Chat part = chat;
    part.messages.resize(n);
    return rendered(part, open, where).text;
  };
  const std::string prompt = upto(i, true);
  size_t begin = common_length(prompt, text);
  // A prompt may open the answer with reasoning that a finished answer does not have. Where a later
  // turn changes the text before the answer, the content shows where it begins.
  if (begin < prompt.size() && begin <= common_length(upto(i, false), text)) {
    begin = content_begin(chat, i, text, prompt, where);
    if (begin == text.npos) throw not_found(i, where);
  }
  const std::string whole = i + 1 < chat.messages.size() ? upto(i + 1, false) : text;
  const bool is_prefix = text.starts_with(whole);
  const std::string_view tail =
      std::string_view(text).substr(begin, is_prefix ? whole.size() - begin : text.npos);
  const jinja::Sequence* parts = parts_of(chat.messages[i]);
  const jinja::Value message = parts != nullptr && parts->items.size() == 1
                                   ? with_plain_content(chat.messages[i])
                                   : chat.messages[i];
  const jinja::Value* content = key_of(message, "content");
  const bool calls = key_of(message, "tool_calls") != nullptr;
  size_t from = 0;
  if (content != nullptr && content->string() != nullptr) {
    const std::string_view wanted = trim(*content->string());
    if (const size_t at = tail.find(wanted); at != tail.npos) from = at + wanted.size();
  }
  // The turn ends with its control token; what follows belongs to the next.
  size_t end = after_special(tail, from, calls && is_prefix);
  const auto next =
      i + 1 < chat.messages.size() ? key_of(chat.messages[i + 1], "content") : nullptr;
  if (!is_prefix && next != nullptr && next->string() != nullptr)
    if (const size_t other = tail.find(trim(*next->string()), from); end > other) end = from;
  if (end == tail.npos) end = trim(tail).data() + trim(tail).size() - tail.data();
  return {begin, begin + end};
}

RenderedChat ChatTemplate::sample(const Chat& chat, const std::string& where) const {
  RenderedChat whole = rendered(chat, false, where);
  const auto mark = [&](size_t i) {
    return i < chat.learned.size() ? chat.learned[i] : std::nullopt;
  };
  const auto learned = [&](size_t i) { return mark(i).value_or(true); };
  std::vector<size_t> assistant;
  for (size_t i = 0; i < chat.messages.size(); ++i)
    if (has_role(chat.messages[i], "assistant"))
      assistant.push_back(i);
    else if (mark(i).value_or(false))
      throw input_error(where, "message {} is marked for training, but its role is not assistant",
                        i + 1);
  const std::vector<TextSpan> tagged = std::exchange(whole.answers, {});
  const bool all = std::ranges::all_of(assistant, learned);
  if (!tagged.empty() && !all && tagged.size() != assistant.size())
    throw input_error(where,
                      "the chat template writes {} generation spans for {} answers, expected one "
                      "for each, since some answers are not trained",
                      tagged.size(), assistant.size());
  if (!tagged.empty()) {
    for (size_t k = 0; k < tagged.size(); ++k)
      if (all || learned(assistant[k])) whole.answers.push_back(tagged[k]);
    return whole;
  }
  for (const size_t i : assistant) {
    if (!learned(i)) continue;
    const TextSpan span = answer(chat, i, whole.text, where);
    if (!whole.answers.empty() && span.begin < whole.answers.back().end) throw not_found(i, where);
    whole.answers.push_back(span);
  }
  return whole;
}

}  // namespace tandem::text
