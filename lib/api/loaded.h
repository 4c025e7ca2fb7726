#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "decode/conversation.h"
#include "decode/session.h"
#include "speculate/plan/generation.h"
#include "tandem/model.h"
#include "tensor/cuda.h"

// State of the classes in include/tandem.
namespace tandem {

/// Passes a run's notes and warnings to the program that uses the library.
class NotePasser final : public decode::RunContext {
 public:
  explicit NotePasser(std::function<void(const std::string&)> to) : to_(std::move(to)) {}
  void show(std::string_view text, int verbosity) const override {
    if (to_ && verbosity == 0) to_(std::string(text));
  }
  void note_once(const std::string& text) const override { note(text); }
  void warn(const std::string& text) const override { note("warning: " + text); }

 private:
  std::function<void(const std::string&)> to_;
};

/// A text of a model, and the chat that it may be.
struct SessionText {
  explicit SessionText(std::unique_ptr<decode::Session> text) : session(std::move(text)) {}

  std::unique_ptr<decode::Session> session;
  std::optional<decode::Conversation> chat = {};
  std::atomic<bool> busy = false;
};

/// A loaded model and the texts of its sessions.
struct LoadedModel {
  LoadedModel(const std::string& path, const ModelOptions& options);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const decode::ModelFiles& files() const { return generation.engines().target->files(); }
  decode::Engine& engine() const { return *generation.engines().target; }
  decode::GenerateSpec spec_of(const Sampling& how) const;
  /// errors   kind input: there is none
  const text::Tokenizer& tokenizer() const;
  std::vector<int32_t> encode(std::string_view text, bool begins) const;
  /// errors   kind input: ids that the model lacks
  void require_known(std::span<const int32_t> ids) const;
  /// errors   kind input: there is none
  const text::ChatTemplate& chat_template();
  std::shared_ptr<SessionText> add(std::shared_ptr<SessionText> text);
  int n_free() const { return recipe.run.batch - static_cast<int>(texts.size()); }
  /// errors   kind usage: all sessions are alive
  void require_free() const;

  NotePasser notes;
  speculate::GenerateRecipe recipe;
  speculate::Generation generation;
  OnRound on_round;
  int64_t context = 0;  // most tokens of a session
  speculate::Generation::Way way = {};
  std::optional<text::ChatTemplate> written = {};     // the chat template, once it is needed
  std::mutex turn;                                    // held by the call that runs the model
  std::atomic<std::thread::id> running = {};          // the thread that has it
  std::set<std::shared_ptr<SessionText>> texts = {};  // alive ones
};

/// Holds the engine during a call, and the model, which a callback may end.
/// errors   kind usage: a callback of the model asks for it
class ModelTurn {
 public:
  /// ends     true if a session ends, which a turn of the same thread also serves
  explicit ModelTurn(std::shared_ptr<LoadedModel> model, bool ends = false);
  ModelTurn(const ModelTurn&) = delete;
  ModelTurn& operator=(const ModelTurn&) = delete;
  ~ModelTurn() {
    if (lock_) model_->running = std::thread::id();
  }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::unique_lock<std::mutex> lock_;
  std::optional<cuda::Using> gpu_;  // CUDA's current GPU is a thread's
};

/// Passes tokens on and ends the run when the receiver returns false.
class TokenPasser {
 public:
  explicit TokenPasser(const OnToken& to) : to_(to) {}
  decode::GenerateEvents events();
  /// Throws what the receiver has thrown, after the run.
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  void pass(const Token& token);

  const OnToken& to_;
  bool stopped_ = false;
  std::exception_ptr thrown_;
};

Result result_of(const decode::Answer& answer);
Finish finish_of(std::optional<decode::Finish> finish);

/// State of a session: its model and text, while the model is alive.
struct OpenSession {
  std::weak_ptr<LoadedModel> model;
  std::weak_ptr<SessionText> text;

  ~OpenSession();
};

}  // namespace tandem
