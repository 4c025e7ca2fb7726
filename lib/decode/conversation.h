#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "decode/session.h"
#include "text/chat_template.h"

namespace tandem::decode {

/// One turn of a conversation: a user message and its answer.
struct Turn : Answer {
  size_t kept = 0;        // tokens that the cache held
  size_t dropped = 0;     // tokens that it held and that the chat no longer begins with
  bool has_date = false;  // the chat template wrote the date
};

/// A chat that grows turn by turn, and whose keys and values stay in a session. A turn
/// writes the whole chat by the template and prefills it from the first token that differs from the
/// cached ones. Under full attention an answer is that of a run with the same messages; other
/// policies read keys of earlier answers as they computed them.
class Conversation {
 public:
  /// session, chat_template  outlive this
  Conversation(Session& session, const text::ChatTemplate& chat_template,
               std::vector<text::ChatMessage> messages = {})
      : session_(session), template_(chat_template), messages_(std::move(messages)) {}

  /// Begins again with a system message; an empty one is left out. The tokens that the new
  /// conversation begins with stay in the cache.
  void restart(const std::string& system);

  /// Adds a turn. An interrupted answer stays as far as it was reported; a turn without an answer
  /// is dropped.
  /// errors   kind input: the chat fills how.max_context; as text::ChatTemplate: it refuses the
  ///          chat; the conversation is as it was
  Turn ask(const std::string& message, const GenerateSpec& how, const GenerateEvents& events);

  const std::vector<text::ChatMessage>& messages() const { return messages_; }

 private:
  Session& session_;
  const text::ChatTemplate& template_;
  std::vector<text::ChatMessage> messages_;
};

}  // namespace tandem::decode
