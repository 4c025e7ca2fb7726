#include "text/chat_messages.h"

#include "base/error.h"
#include "io/json.h"

namespace tandem::text {
namespace {

/// Templates write them in ways of their own, which are not followed.
void refuse_tools(const io::Json& message, const std::string& where, const std::string& hint) {
  for (const char* key : {"tool_calls", "function_call", "tool_call_id"})
    if (const auto it = message.find(key); it != message.end() && !it->is_null())
      throw input_error(where, "key '{}' of a message: calls of tools are not supported", key)
          .hint(hint);
}

}  // namespace

std::vector<ChatMessage> parse_messages(const io::Json& object, const std::string& where,
                                        const std::string& hint) {
  std::vector<ChatMessage> chat;
  for (const io::Json& m : io::get_array(object, "messages", where)) {
    if (!m.is_object()) throw input_error(where, "expected a message, found {}", io::describe(m));
    refuse_tools(m, where, hint);
    chat.push_back({io::get_string(m, "role", where), io::get_string(m, "content", where),
                    io::find_string(m, "reasoning_content", where)});
  }
  return chat;
}

}  // namespace tandem::text
