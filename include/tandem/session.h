#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tandem/result.h"

namespace tandem {

/// Logits of some tokens.
struct Logits {
  int rows = 0, vocab = 0;
  std::vector<float> values = {};  // [rows, vocab]

  std::span<const float> row(int i) const {
    const auto n = static_cast<size_t>(vocab);
    return std::span(values).subspan(static_cast<size_t>(i) * n, n);
  }
};

struct OpenSession;  // internal

/// A text that grows in the KV cache of a model. Sessions of one model take turns, so that each
/// thread may have its own; destroying one waits for its turn, too. After an error a session keeps
/// the tokens that were read until then.
/// errors   All calls: kind usage if the model is gone or another thread uses the session. Kind
///          input if the text outgrows the context or an id does not exist. Kind recipe for
///          Sampling out of range. Kinds memory, device, numeric. Errors of callbacks pass through
class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Adds a prompt and generates an answer, which becomes part of the text, with its end-of-text
  /// token if it has one. A prompt text that begins a session gets the beginning-of-text token.
  Result generate(std::string_view prompt, const Sampling& how = {}, const OnToken& on_token = {});
  Result generate(std::span<const int32_t> prompt, const Sampling& how = {},
                  const OnToken& on_token = {});
  /// Adds a user message in the model's chat template and generates the answer to it. Tokens that
  /// other calls have added since the last chat turn are removed.
  /// errors   kind usage: the session began with another call, or was restored; kind input: the
  ///          model has no chat template
  Result chat(std::string_view message, const Sampling& how = {}, const OnToken& on_token = {});
  /// Begins a new chat with a system message; an empty one is left out. The next message replaces
  /// the text.
  void restart_chat(std::string_view system = {});

  /// Adds tokens as a prompt, under full attention. A text that begins a session gets the
  /// beginning-of-text token.
  void append(std::span<const int32_t> ids);
  void append(std::string_view text);
  /// Adds tokens under the cache's policy and returns the logits after each.
  Logits read(std::span<const int32_t> ids);
  /// Adds tokens under the cache's policy and returns the log-probability of each, given the text
  /// before it. The last token of that text is read again, under the policy, for the first one.
  /// errors   kind usage: the text is empty
  std::vector<float> log_probs(std::span<const int32_t> ids);
  /// Keeps only the first n tokens of the text.
  /// errors   kind input: the policy evicted keys that they need
  void rewind(int64_t n_tokens);

  /// The text so far.
  std::vector<int32_t> ids() const;
  /// Returns a second session with the same text, which shares its memory.
  Session fork() const;
  /// Saves the text and its keys and values, for Model::restore.
  void save(const std::filesystem::path& file) const;

 private:
  friend class Model;
  explicit Session(std::unique_ptr<OpenSession> open);
  std::unique_ptr<OpenSession> open_;
};

}  // namespace tandem
