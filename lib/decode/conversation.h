#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decode/generate.h"
#include "text/chat_template.h"

namespace tandem::decode {

/// One turn of a conversation: a user message and its answer.
struct Turn {
  size_t kept = 0;                    // tokens that the cache held
  size_t dropped = 0;                 // tokens that it held and that the chat no longer begins with
  std::optional<Finish> finish = {};  // none: the answer was interrupted
  bool has_date = false;              // the chat template wrote the date
  GenerateReport report = {};
};

/// A chat that grows turn by turn, and whose keys and values stay in a slot of the cache. A turn
/// writes the whole chat by the template and prefills it from the first token that differs from the
/// cached ones. Under full attention an answer is that of a run with the same messages; other
/// policies read keys of earlier answers as they computed them.
class Conversation {
 public:
  /// engine, decoder  outlive this
  Conversation(Engine& engine, Decoder& decoder, text::ChatTemplate chat_template);
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;
  ~Conversation();

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
  /// Cuts the slot to what these tokens begin with, less their last one, which gives logits.
  void keep_prefix_of(std::span<const int32_t> ids, Turn& turn);
  void release();

  Engine& engine_;
  Decoder& decoder_;
  text::ChatTemplate template_;
  std::vector<text::ChatMessage> messages_;
  int slot_ = -1;              // -1 before the first turn
  std::vector<int32_t> held_;  // tokens of the slot
};

}  // namespace tandem::decode
