#pragma once
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "text/jinja/value.h"

namespace tandem::text {

/// A message whose content is plain text.
struct ChatMessage {
  std::string role, content;
};

/// The input of a chat template.
struct Chat {
  Chat() = default;
  Chat(std::initializer_list<ChatMessage> turns) : Chat(std::span(turns.begin(), turns.size())) {}
  explicit Chat(std::span<const ChatMessage> turns);

  jinja::Values messages;  // dicts with "role", and usually "content"
  jinja::Value tools = jinja::None{}, documents = jinja::None{};
  // By message: whether training counts it; unset: if the assistant wrote it.
  std::vector<std::optional<bool>> learned;
};

/// A chat from the keys "messages", "tools" and "documents" of a JSON object, with the keys of each
/// message in their order. As in transformers, keys that are null count as absent, and reasoning is
/// known by the names reasoning_content and thinking. A message that says weight 0, train false or
/// trainable false is not learned.
/// errors   kind input at `where`: no list of messages, a message without a role, content that is
///          neither text nor text parts, a weight other than 0 and 1
Chat parse_chat(const io::OrderedJson& object, const std::string& where);

/// A list of objects from a JSON file, such as descriptions of tools.
/// errors   kind input: missing, malformed, or something else
jinja::Value read_objects(const std::filesystem::path& file);

}  // namespace tandem::text
