#include "tandem/session.h"

#include <algorithm>
#include <cmath>

#include "api/loaded.h"

namespace tandem {
namespace {

/// A call on a session: keeps its model alive, and others away from both.
class Call {
 public:
  explicit Call(const OpenSession* session)
      : model_(session != nullptr ? session->model.lock() : nullptr),
        text_(session != nullptr ? session->text.lock() : nullptr) {
    if (!model_ || !text_)
      throw usage_error("Session", "its model is gone").hint("keep the Model while it is used");
    if (text_->busy.exchange(true)) {
      if (model_->running.load() == std::this_thread::get_id()) (void)ModelTurn(*model_);
      throw usage_error("Session", "is in use by another thread")
          .hint("give each thread its own session");
    }
    try {
      turn_.emplace(*model_);
    } catch (...) {
      text_->busy = false;
      throw;
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { text_->busy = false; }

  LoadedModel& model() const { return *model_; }
  SessionText& text() const { return *text_; }
  decode::Session& session() const { return *text_->session; }
  const std::shared_ptr<LoadedModel>& shared_model() const { return model_; }

  /// errors   kind input: ids that the model lacks, or more than the context has room for
  /// room     tokens that must fit after them
  void check(std::span<const int32_t> ids, int64_t room = 0) const {
    const int vocab = model_->engine().config().vocab_size;
    for (const int32_t id : ids)
      if (id < 0 || id >= vocab)
        throw input_error("Session", "expected token ids from 0 to {}, found {}", vocab - 1, id);
    const int64_t n = std::ssize(session().tokens()) + std::ssize(ids) + room;
    const int64_t most = model_->generation.pair().target_spec().max_tokens;
    if (n > most)
      throw input_error("Session", "the text would have {} tokens, but a session has room for {}",
                        n, most)
          .hint("raise ModelOptions::context, or rewind the session");
  }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::optional<ModelTurn> turn_;
  std::shared_ptr<SessionText> text_;
};

}  // namespace

OpenSession::~OpenSession() {
  const auto of = model.lock();
  auto mine = text.lock();
  if (!of || !mine) return;
  // Within a callback of the same model the thread has the turn already.
  const bool own = of->running.load() == std::this_thread::get_id();
  const std::unique_lock lock = own ? std::unique_lock<std::mutex>() : std::unique_lock(of->turn);
  of->texts.erase(mine.get());
  mine.reset();
}

Session::Session(std::unique_ptr<OpenSession> open) : open_(std::move(open)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result Session::generate(std::span<const int32_t> prompt, const Sampling& how,
                         const OnToken& on_token) {
  const Call call(open_.get());
  call.check(prompt, how.max_tokens > 0 ? 1 : 0);
  if (prompt.empty() && call.session().tokens().empty())
    throw usage_error("Session::generate", "expected a prompt, found neither one nor a text");
  if (how.max_tokens < 1)
    throw usage_error("Sampling::max_tokens", "expected at least 1, found {}", how.max_tokens)
        .hint("Session::append adds a prompt without an answer");
  TokenPasser passer(on_token);
  return result_of(call.session().generate(prompt, call.model().spec_of(how), passer.events()));
}

Result Session::generate(std::string_view prompt, const Sampling& how, const OnToken& on_token) {
  std::vector<int32_t> ids;
  {
    const Call call(open_.get());
    ids = call.model().encode(prompt, call.session().tokens().empty());
  }
  return generate(ids, how, on_token);
}

Result Session::chat(std::string_view message, const Sampling& how, const OnToken& on_token) {
  const Call call(open_.get());
  SessionText& text = call.text();
  if (!text.chat) {
    if (!call.session().tokens().empty())
      throw usage_error("Session::chat", "the session has a text that is no chat")
          .hint("begin the chat in a new session");
    text.chat.emplace(call.session(), call.model().chat_template());
  }
  TokenPasser passer(on_token);
  return result_of(
      text.chat->ask(std::string(message), call.model().spec_of(how), passer.events()));
}

void Session::restart_chat(std::string_view system) {
  const Call call(open_.get());
  SessionText& text = call.text();
  if (!text.chat) text.chat.emplace(call.session(), call.model().chat_template());
  text.chat->restart(std::string(system));
}

void Session::append(std::span<const int32_t> ids) {
  const Call call(open_.get());
  call.check(ids);
  if (!ids.empty()) call.session().append(ids);
}

void Session::append(std::string_view text) {
  std::vector<int32_t> ids;
  {
    const Call call(open_.get());
    ids = call.model().encode(text, call.session().tokens().empty());
  }
  append(ids);
}

Logits Session::read(std::span<const int32_t> ids) {
  const Call call(open_.get());
  call.check(ids);
  Logits logits{.rows = static_cast<int>(ids.size()),
                .vocab = call.model().engine().config().vocab_size};
  logits.values.resize(ids.size() * static_cast<size_t>(logits.vocab));
  call.session().read(ids, [&](size_t first, const Tensor& rows) {
    const auto n = static_cast<size_t>(rows.rows() * logits.vocab);
    std::copy_n(rows.as<float>(), n,
                logits.values.data() + first * static_cast<size_t>(logits.vocab));
  });
  return logits;
}

std::vector<float> Session::log_probs(std::span<const int32_t> ids) {
  const Call call(open_.get());
  call.check(ids);
  if (ids.empty()) return {};
  decode::Session& session = call.session();
  if (session.tokens().empty())
    throw usage_error("Session::log_probs", "expected a text before the tokens, found none")
        .hint("append the first token before");
  std::vector<int32_t> rows = {session.tokens().back()};
  rows.insert(rows.end(), ids.begin(), ids.end());
  session.rewind(session.tokens().size() - 1);
  std::vector<float> result(ids.size());
  session.read(rows, [&](size_t first, const Tensor& logits) {
    const auto vocab = static_cast<size_t>(logits.size(1));
    for (int64_t r = 0; r < logits.rows(); ++r) {
      const size_t i = first + static_cast<size_t>(r);
      if (i >= ids.size()) return;
      const std::span row(logits.as<float>() + static_cast<size_t>(r) * vocab, vocab);
      const float top = *std::ranges::max_element(row);
      double sum = 0;
      for (const float x : row) sum += std::exp(double{x} - top);
      result[i] = static_cast<float>(row[static_cast<size_t>(ids[i])] - top - std::log(sum));
    }
  });
  return result;
}

void Session::rewind(int64_t n_tokens) {
  const Call call(open_.get());
  const int64_t n = std::ssize(call.session().tokens());
  if (n_tokens < 0 || n_tokens > n)
    throw usage_error("Session::rewind", "expected 0 to {} tokens, found {}", n, n_tokens);
  call.session().rewind(static_cast<size_t>(n_tokens));
}

std::vector<int32_t> Session::ids() const {
  const Call call(open_.get());
  return call.session().tokens();
}

Session Session::fork() const {
  const Call call(open_.get());
  call.model().require_free(1);
  const auto text = call.model().add(call.session().fork());
  if (call.text().chat)
    text->chat.emplace(*text->session, call.model().chat_template(), call.text().chat->messages());
  return Session(std::make_unique<OpenSession>(call.shared_model(), text));
}

void Session::save(const std::filesystem::path& file) const {
  const Call call(open_.get());
  call.session().save(file, io::Existing::replaced);
}

}  // namespace tandem
