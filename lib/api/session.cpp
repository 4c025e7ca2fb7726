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
    if (session == nullptr)
      throw usage_error("Session", "the session was moved to another object")
          .hint("use that object");
    if (!model_ || !text_)
      throw usage_error("Session", "its model is gone").hint("keep the Model while it is used");
    if (text_->busy.exchange(true)) {
      if (model_->running.load() == std::this_thread::get_id()) (void)ModelTurn(model_);
      throw usage_error("Session", "is in use by another thread")
          .hint("give each thread its own session");
    }
    try {
      turn_.emplace(model_);
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

  /// The tokens of a prompt text.
  std::vector<int32_t> encode(std::string_view text) const {
    return model_->encode(text, session().tokens().empty());
  }
  /// errors   kind input: ids that the model lacks, or more than the context has room for
  /// room     tokens that must fit after them
  void check(std::span<const int32_t> ids, int64_t room = 0) const {
    model_->require_known(ids);
    const int64_t n = std::ssize(session().tokens()) + std::ssize(ids) + room;
    const int64_t most = model_->context;
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

Result generate_by(const Call& call, std::span<const int32_t> prompt, const Sampling& how,
                   const OnToken& on_token) {
  const decode::GenerateSpec spec = call.model().spec_of(how);
  call.check(prompt, 1);
  if (prompt.empty() && call.session().tokens().empty())
    throw usage_error("Session::generate", "expected a prompt, found neither one nor a text");
  TokenPasser passer(on_token);
  const decode::Answer answer = call.session().generate(prompt, spec, passer.events());
  passer.rethrow();
  return result_of(answer);
}

void append_by(const Call& call, std::span<const int32_t> ids) {
  call.check(ids);
  if (!ids.empty()) call.session().append(ids);
}

}  // namespace

OpenSession::~OpenSession() {
  const auto of = model.lock();
  auto mine = text.lock();
  if (!of || !mine) return;
  const ModelTurn turn(of, true);
  of->texts.erase(mine);
  mine.reset();
}

Session::Session(std::unique_ptr<OpenSession> open) : open_(std::move(open)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result Session::generate(std::span<const int32_t> prompt, const Sampling& how,
                         const OnToken& on_token) {
  return generate_by(Call(open_.get()), prompt, how, on_token);
}

Result Session::generate(std::string_view prompt, const Sampling& how, const OnToken& on_token) {
  const Call call(open_.get());
  return generate_by(call, call.encode(prompt), how, on_token);
}

Result Session::chat(std::string_view message, const Sampling& how, const OnToken& on_token) {
  const Call call(open_.get());
  const decode::GenerateSpec spec = call.model().spec_of(how);
  SessionText& text = call.text();
  if (!text.chat) {
    if (!call.session().tokens().empty())
      throw usage_error("Session::chat", "the session has a text that is no chat")
          .hint("call restart_chat to drop it, or begin the chat in a new session");
    text.chat.emplace(call.session(), call.model().chat_template());
  }
  TokenPasser passer(on_token);
  try {
    return result_of(text.chat->ask(std::string(message), spec, passer.events()));
  } catch (Error& e) {
    if (e.where() != "chat") throw;
    throw std::move(e).hint("call restart_chat, or raise ModelOptions::context");
  }
}

void Session::restart_chat(std::string_view system) {
  const Call call(open_.get());
  SessionText& text = call.text();
  if (!text.chat) text.chat.emplace(call.session(), call.model().chat_template());
  text.chat->restart(std::string(system));
}

void Session::append(std::span<const int32_t> ids) { append_by(Call(open_.get()), ids); }

void Session::append(std::string_view text) {
  const Call call(open_.get());
  append_by(call, call.encode(text));
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
  std::vector<float> result(ids.size());
  session.read_after_last(ids, [&](size_t first, const Tensor& logits) {
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
    throw usage_error("Session::rewind", "expected 0 to {} tokens, found {}", n, n_tokens)
        .hint("Session::ids has the text");
  call.session().rewind(static_cast<size_t>(n_tokens));
}

std::vector<int32_t> Session::ids() const {
  const Call call(open_.get());
  return call.session().tokens();
}

Session Session::fork() const {
  const Call call(open_.get());
  call.model().require_free();
  auto text = std::make_shared<SessionText>(call.session().fork());
  if (call.text().chat)
    text->chat.emplace(*text->session, call.model().chat_template(), call.text().chat->messages());
  return Session(
      std::make_unique<OpenSession>(call.shared_model(), call.model().add(std::move(text))));
}

void Session::save(const std::filesystem::path& file) const {
  const Call call(open_.get());
  call.session().save(file, io::Existing::replaced);
}

}  // namespace tandem
