#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "decode/conversation.h"
#include "decode/session.h"
#include "speculate/plan/generation.h"
#include "tandem/model.h"

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
  std::vector<int32_t> encode(std::string_view text, bool begins) const;
  /// errors   kind input: there is none
  const text::ChatTemplate& chat_template();
  /// errors   kind usage: all are alive
  std::shared_ptr<SessionText> add(std::unique_ptr<decode::Session> session);
  int n_free() const;
  void require_free(int n) const;

  NotePasser notes;
  speculate::GenerateRecipe recipe;
  speculate::Generation generation;
  OnRound on_round;
  speculate::Generation::Way way = {};
  std::optional<text::ChatTemplate> written = {};  // the chat template, once it is needed
  std::mutex turn;                                 // held by the call that runs the model
  std::atomic<std::thread::id> running = {};       // the thread that has it
  std::map<const SessionText*, std::shared_ptr<SessionText>> texts = {};  // alive ones
};

/// Has the engine for a call.
/// errors   kind usage: a callback of the model asks for it
class ModelTurn {
 public:
  explicit ModelTurn(LoadedModel& model);
  ModelTurn(const ModelTurn&) = delete;
  ModelTurn& operator=(const ModelTurn&) = delete;
  ~ModelTurn() { model_.running = std::thread::id(); }

 private:
  LoadedModel& model_;
  std::unique_lock<std::mutex> lock_;
};

/// Passes tokens on and ends the run when the receiver returns false.
class TokenPasser {
 public:
  explicit TokenPasser(const OnToken& to) : to_(to) {}
  decode::GenerateEvents events();
  bool stopped() const { return stopped_; }

 private:
  const OnToken& to_;
  bool stopped_ = false;
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
