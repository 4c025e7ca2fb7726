#include "decode/session.h"

#include <algorithm>
#include <utility>

namespace tandem::decode {

Session::Session(Engine& engine, Decoder& decoder, const SavedState& state)
    : engine_(engine),
      decoder_(decoder),
      slot_(restore_state(state, engine, engine.cache().all_readers())),
      tokens_(state.tokens) {}

int Session::slot() {
  if (slot_ < 0) slot_ = engine_.cache().create(decoder_.readers());
  return slot_;
}

size_t Session::n_cached() const {
  return slot_ < 0 ? 0 : static_cast<size_t>(engine_.cache().length(slot_));
}

void Session::catch_up() {
  const size_t n = n_cached();
  if (n == tokens_.size()) return;
  const SeqTokens rest[] = {{slot(), std::span(tokens_).subspan(n), true}};
  try {
    engine_.prefill(rest, {});
  } catch (...) {
    tokens_.resize(n_cached());
    throw;
  }
}

void Session::append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  catch_up();
}

void Session::read(std::span<const int32_t> tokens,
                   const std::function<void(size_t first, const Tensor& logits)>& visit) {
  if (tokens.empty()) return;
  catch_up();
  read_rows(tokens, 0, visit);
}

void Session::read_after_last(
    std::span<const int32_t> tokens,
    const std::function<void(size_t first, const Tensor& logits)>& visit) {
  catch_up();
  std::vector<int32_t> rows = {tokens_.back()};
  rows.insert(rows.end(), tokens.begin(), tokens.end());
  engine_.cache().truncate(slot_, static_cast<int>(tokens_.size()) - 1);
  read_rows(rows, 1, visit);
}

void Session::read_rows(std::span<const int32_t> tokens, size_t n_known,
                        const std::function<void(size_t first, const Tensor& logits)>& visit) {
  const EngineSpec& spec = engine_.spec();
  const auto most =
      static_cast<size_t>(spec.max_extend_rows > 0 ? spec.max_extend_rows : spec.prefill_chunk);
  for (size_t at = 0; at < tokens.size(); at += most) {
    const auto part = tokens.subspan(at, std::min(most, tokens.size() - at));
    const SeqTokens rows[] = {{slot(), part, true}};
    try {
      engine_.forward_all(kv::Phase::extend, rows, [&](int first, const Tensor& logits) {
        visit(at + static_cast<size_t>(first), logits);
      });
    } catch (...) {  // a policy's hook may throw after its rows were committed
      if (n_cached() > tokens_.size())
        engine_.cache().truncate(slot_, static_cast<int>(tokens_.size()));
      throw;
    }
    const size_t skip = at < n_known ? n_known - at : 0;
    tokens_.insert(tokens_.end(), part.begin() + static_cast<std::ptrdiff_t>(skip), part.end());
  }
}

void Session::rewind(size_t n) {
  if (n >= tokens_.size()) return;
  if (n == 0) return clear();
  if (n < n_cached()) engine_.cache().truncate(slot_, static_cast<int>(n));
  tokens_.resize(n);
}

size_t Session::rewind_if_kept(size_t n) {
  if (n < n_cached() && engine_.cache().missing_token(slot_, static_cast<int>(n)) >= 0)
    clear();
  else
    rewind(n);
  return tokens_.size();
}

void Session::clear() {
  if (slot_ >= 0) engine_.cache().release(slot_);
  slot_ = -1;
  tokens_.clear();
}

Answer Session::generate(std::span<const int32_t> tokens, const GenerateSpec& how,
                         const GenerateEvents& events) {
  slot();
  const size_t before = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const auto cached = static_cast<std::ptrdiff_t>(n_cached());
  const std::vector<int32_t> prefix(tokens_.begin(), tokens_.begin() + cached);
  const Request request{
      .own_slot = slot_, .prefix = prefix, .tokens = {tokens_.begin() + cached, tokens_.end()}};
  Answer answer;
  GenerateEvents noted = events;
  noted.on_token = [&](const TokenEvent& e) {
    answer.ids.push_back(e.id);
    answer.text += e.text;
    if (events.on_token) events.on_token(e);
  };
  noted.on_finish = [&](int seq, Finish finish, const std::string& rest) {
    answer.finish = finish;
    answer.text += rest;
    if (events.on_finish) events.on_finish(seq, finish, rest);
  };
  const auto settle = [&] {
    tokens_.insert(tokens_.end(), answer.ids.begin(), answer.ids.end());
    // A prompt that was cut short has no answer; a GPU may have run a step beyond the tokens that
    // were reported.
    if (answer.ids.empty()) tokens_.resize(std::clamp(n_cached(), before, tokens_.size()));
    if (n_cached() > tokens_.size())
      engine_.cache().truncate(slot_, static_cast<int>(tokens_.size()));
  };
  try {
    decode::generate(engine_, decoder_, {&request, 1}, how, noted, answer.report);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) {
      settle();
      throw;
    }
  } catch (...) {  // thrown by a callback
    settle();
    throw;
  }
  settle();
  return answer;
}

std::unique_ptr<Session> Session::fork() {
  auto copy = std::make_unique<Session>(engine_, decoder_);
  if (slot_ >= 0) {
    copy->slot_ = engine_.cache().fork(slot_, engine_.cache().readers_of(slot_));
    copy->tokens_ = tokens_;
  }
  return copy;
}

void Session::save(const std::filesystem::path& path, io::Existing existing) {
  if (tokens_.empty()) throw usage_error("Session::save", "expected a text to save, found none");
  catch_up();
  save_state(path, engine_, slot_, tokens_, existing);
}

}  // namespace tandem::decode
