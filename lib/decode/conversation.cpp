#include "decode/conversation.h"

#include <algorithm>
#include <utility>

#include "text/tokenizer.h"

namespace tandem::decode {

Conversation::Conversation(Engine& engine, Decoder& decoder, text::ChatTemplate chat_template)
    : engine_(engine), decoder_(decoder), template_(std::move(chat_template)) {}

Conversation::~Conversation() { release(); }

void Conversation::restart(const std::string& system) {
  messages_.clear();
  if (!system.empty()) messages_.push_back({"system", system});
}

Turn Conversation::ask(const std::string& message, const GenerateSpec& how,
                       const GenerateEvents& events) {
  std::vector<text::ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  const text::RenderedChat rendered = template_.prompt(text::Chat(messages), "the conversation");
  std::vector<int32_t> ids = engine_.tokenizer()->encode(rendered.text, {.add_bos = false});
  if (how.max_context > 0 && std::ssize(ids) >= how.max_context)
    throw input_error("chat", "has {} tokens with this turn, the context holds {}", ids.size(),
                      how.max_context)
        .hint("begin a new conversation (/reset), or raise run.context");
  Turn turn{.has_date = rendered.has_date};
  keep_prefix_of(ids, turn);
  const Request request{.own_slot = slot_,
                        .prefix = held_,
                        .tokens = {ids.begin() + static_cast<long>(turn.kept), ids.end()}};
  std::string answer;
  GenerateEvents noted = events;
  noted.on_token = [&](const TokenEvent& e) {
    ids.push_back(e.id);
    answer += e.text;
    if (events.on_token) events.on_token(e);
  };
  noted.on_finish = [&](int seq, Finish finish, const std::string& rest) {
    turn.finish = finish;
    answer += rest;
    if (events.on_finish) events.on_finish(seq, finish, rest);
  };
  try {
    generate(engine_, decoder_, {&request, 1}, how, noted, turn.report);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;
  }
  // A GPU may have run a step beyond the tokens that were reported.
  kv::Cache& cache = engine_.cache();
  const auto length = static_cast<size_t>(cache.length(slot_));
  if (length > ids.size()) cache.truncate(slot_, static_cast<int>(ids.size()));
  ids.resize(std::min(length, ids.size()));
  held_ = std::move(ids);
  if (!turn.finish && answer.empty()) return turn;
  messages.push_back({"assistant", std::move(answer)});
  messages_ = std::move(messages);
  return turn;
}

void Conversation::keep_prefix_of(std::span<const int32_t> ids, Turn& turn) {
  const auto differs = std::ranges::mismatch(held_, ids.first(ids.size() - 1)).in1;
  const auto n = static_cast<size_t>(differs - held_.begin());
  kv::Cache& cache = engine_.cache();
  turn.dropped = held_.size() - n;
  if (turn.dropped > 0) {
    // A policy may have evicted what the shorter text needs: all of it is read again.
    if (cache.missing_token(slot_, static_cast<int>(n)) >= 0) {
      turn.dropped = held_.size();
      release();
    } else {
      cache.truncate(slot_, static_cast<int>(n));
      held_.resize(n);
    }
  }
  if (slot_ < 0) slot_ = cache.create(decoder_.readers());
  turn.kept = held_.size();
}

void Conversation::release() {
  if (slot_ >= 0) engine_.cache().release(slot_);
  slot_ = -1;
  held_.clear();
}

}  // namespace tandem::decode
