#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/generate.h"
#include "decode/state.h"

namespace tandem::decode {

/// One generated part of a session's text.
struct Answer {
  std::vector<int32_t> ids = {};      // a stop id is among them
  std::string text = {};              // without stop strings and special tokens
  std::optional<Finish> finish = {};  // none: it was interrupted
  GenerateReport report = {};
};

/// A text that grows, whose keys and values stay in a slot of an engine's cache.
class Session {
 public:
  /// engine, decoder  outlive this
  Session(Engine& engine, Decoder& decoder) : engine_(engine), decoder_(decoder) {}
  /// Goes on after a saved state.
  /// errors   as restore_state
  Session(Engine& engine, Decoder& decoder, const SavedState& state);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { clear(); }

  Engine& engine() const { return engine_; }
  /// The text. The cache lacks its last token after an answer, which nothing has read yet.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  size_t n_cached() const;

  /// Adds tokens as a prompt, attended in full.
  /// errors   kind interrupted: the tokens read until then stay
  void append(std::span<const int32_t> tokens);
  /// Adds tokens as decode steps do, under the cache's policy, and visits the logits after each.
  /// shapes   visit(first of some of `tokens`, [n, vocab] f32 on the host, valid during the call)
  void read(std::span<const int32_t> tokens,
            const std::function<void(size_t first, const Tensor& logits)>& visit);
  /// As read, but the last token of the text is read again first: its logits are the first.
  void read_after_last(std::span<const int32_t> tokens,
                       const std::function<void(size_t first, const Tensor& logits)>& visit);
  /// Keeps only the first n tokens.
  /// errors   kind input: the policy evicted keys that they need
  void rewind(size_t n);
  /// As rewind, but without an error: a text whose keys are gone becomes empty. Returns what stays.
  size_t rewind_if_kept(size_t n);
  /// Removes the whole text.
  void clear();

  /// Adds `tokens` and what the decoder generates after them. Interrupted, it stays as far as it
  /// was reported.
  /// errors   as decode::generate, but for interruptions
  Answer generate(std::span<const int32_t> tokens, const GenerateSpec& how,
                  const GenerateEvents& events);

  /// A second session with the same text, which shares its pages.
  /// errors   as kv::Cache::fork
  std::unique_ptr<Session> fork();
  /// errors   as save_state; kind usage: there is no text
  void save(const std::filesystem::path& path, io::Existing existing);

 private:
  int slot();
  /// Tokens that the cache lacks go through the model as a prompt.
  void catch_up();
  /// Reads tokens whose first n_known the text has already.
  void read_rows(std::span<const int32_t> tokens, size_t n_known,
                 const std::function<void(size_t first, const Tensor& logits)>& visit);

  Engine& engine_;
  Decoder& decoder_;
  int slot_ = -1;  // -1: there is no text
  std::vector<int32_t> tokens_;
};

}  // namespace tandem::decode
