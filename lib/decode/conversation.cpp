#include "decode/conversation.h"

#include <algorithm>
#include <utility>

#include "text/tokenizer.h"

namespace tandem::decode {

void Conversation::restart(const std::string& system) {
  messages_.clear();
  if (!system.empty()) messages_.push_back({"system", system});
}

Turn Conversation::ask(const std::string& message, const GenerateSpec& how,
                       const GenerateEvents& events) {
  std::vector<text::ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  const text::RenderedChat rendered = template_.prompt(text::Chat(messages), "the conversation");
  const std::vector<int32_t> ids =
      session_.engine().tokenizer()->encode(rendered.text, {.add_bos = false});
  if (how.max_context > 0 && std::ssize(ids) >= how.max_context)
    throw input_error("chat", "has {} tokens with this turn, the context holds {}", ids.size(),
                      how.max_context)
        .hint("begin a new conversation (/reset), or raise run.context");
  const std::span<const int32_t> all = ids, reusable = all.first(all.size() - 1);
  const auto differs = std::ranges::mismatch(session_.tokens(), reusable).in2;
  const size_t held = session_.n_cached();
  // A policy may have evicted what the shorter text needs: all of it is read again.
  const size_t n_same = session_.rewind_if_kept(static_cast<size_t>(differs - reusable.begin()));
  Turn turn{{}, session_.n_cached(), held - session_.n_cached(), rendered.has_date};
  static_cast<Answer&>(turn) = session_.generate(all.subspan(n_same), how, events);
  if (!turn.finish && turn.text.empty()) return turn;
  messages.push_back({"assistant", turn.text});
  messages_ = std::move(messages);
  return turn;
}

}  // namespace tandem::decode
