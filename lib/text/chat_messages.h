#pragma once
#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "text/chat_template.h"

namespace tandem::text {

/// The messages of a chat from key "messages" of a JSON object: [{"role", "content"}], where one of
/// an assistant may have a key "reasoning_content" too.
/// hint     the remedy for calls of tools
/// errors   kind input at `where`: missing or malformed; calls of tools
std::vector<ChatMessage> parse_messages(const io::Json& object, const std::string& where,
                                        const std::string& hint);

}  // namespace tandem::text
