#include "text/chat.h"

#include <fmt/format.h>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "io/text_file.h"

namespace tandem::text {
namespace {

using io::OrderedJson;

/// Describes a value for messages.
std::string described(const OrderedJson& value) { return io::describe(io::Json(value)); }

void check_content(const OrderedJson& message, const std::string& where) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null() || content->is_string()) return;
  if (!content->is_array())
    throw input_error(where,
                      "key 'content' of a message: expected text or a list of parts, found {}",
                      described(*content));
  for (const OrderedJson& part : *content) {
    const bool object = part.is_object();
    const auto type = object ? part.find("type") : part.end();
    if (object && type != part.end() && type->is_string() && *type != "text")
      throw input_error(where, "a content part of type {} is not supported, only text",
                        io::quote(type->get<std::string>()))
          .hint("remove images, audio and video");
    if (!part.is_string() && (!object || !part.contains("text") || !part["text"].is_string()))
      throw input_error(where,
                        "expected a content part {{\"type\": \"text\", \"text\": ...}}, found {}",
                        described(part));
  }
}

/// True if training counts the message, by the marks of other programs' data sets; unset: no mark.
std::optional<bool> is_learned(const OrderedJson& message, const std::string& where) {
  std::optional<bool> learned;
  for (const char* key : {"weight", "train", "trainable"}) {
    const auto mark = message.find(key);
    if (mark == message.end() || mark->is_null()) continue;
    const bool weight = std::string_view(key) == "weight";
    if (weight ? !mark->is_number() || (*mark != 0 && *mark != 1) : !mark->is_boolean())
      throw input_error(where, "key '{}' of a message: expected {}, found {}", key,
                        weight ? "0 or 1" : "true or false", described(*mark));
    learned = learned.value_or(true) && (weight ? *mark == 1 : mark->get<bool>());
  }
  return learned;
}

jinja::Value message_of(const OrderedJson& message, const std::string& where) {
  if (!message.is_object())
    throw input_error(where, "expected a message, found {}", described(message));
  const auto role = message.find("role");
  if (role == message.end())
    throw input_error(where, "expected the key 'role' in a message, found none");
  if (!role->is_string())
    throw input_error(where, "key 'role' of a message: expected text, found {}", described(*role));
  check_content(message, where);
  const OrderedJson* reasoning = nullptr;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (const auto it = message.find(key); !reasoning && it != message.end() && !it->is_null())
      reasoning = &*it;
  jinja::Dict dict;
  if (reasoning != nullptr) dict.set("thinking", jinja::from_json(*reasoning));
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) dict.set(key, jinja::from_json(value));
  if (reasoning != nullptr) dict.set("reasoning_content", jinja::from_json(*reasoning));
  return dict;
}

/// A key that is a list of objects; none where it is absent.
jinja::Value objects(const OrderedJson& object, const char* key, const std::string& where) {
  const auto list = object.find(key);
  if (list == object.end() || list->is_null()) return jinja::None{};
  if (!list->is_array())
    throw input_error(where, "key '{}': expected a list, found {}", key, described(*list));
  for (const OrderedJson& entry : *list)
    if (!entry.is_object())
      throw input_error(where, "key '{}': expected a list of objects, found {}", key,
                        described(entry));
  return jinja::from_json(*list);
}

}  // namespace

Chat::Chat(std::span<const ChatMessage> turns) : learned(turns.size()) {
  for (const ChatMessage& turn : turns) {
    jinja::Dict message;
    message.set("role", turn.role);
    message.set("content", turn.content);
    messages.emplace_back(std::move(message));
  }
}

Chat parse_chat(const OrderedJson& object, const std::string& where) {
  const auto messages = object.find("messages");
  if (messages == object.end() || !messages->is_array())
    throw input_error(where, "key 'messages': expected a list of messages, found {}",
                      messages == object.end() ? "nothing" : described(*messages));
  if (messages->empty())
    throw input_error(where, "key 'messages': expected at least one message, found none");
  Chat chat;
  try {
    for (const OrderedJson& message : *messages) {
      chat.messages.push_back(message_of(message, where));
      chat.learned.push_back(is_learned(message, where));
    }
    chat.tools = objects(object, "tools", where);
    chat.documents = objects(object, "documents", where);
  } catch (const jinja::Failure& e) {
    throw input_error(where, "{}", e.what());
  }
  return chat;
}

jinja::Value read_objects(const std::filesystem::path& file) {
  OrderedJson holder = {{"list", io::parse_ordered_json(io::read_file(file), file.string())}};
  if (!holder["list"].is_array())
    throw input_error(file.string(), "expected a JSON array of objects, found {}",
                      described(holder["list"]));
  return objects(holder, "list", file.string());
}

}  // namespace tandem::text
