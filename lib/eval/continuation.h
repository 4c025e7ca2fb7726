#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/engine.h"
#include "eval/reads.h"
#include "eval/settings.h"
#include "kv/scoped_slots.h"

namespace tandem::eval {

/// A row of logits on the host.
struct LogitRow {
  const float* logits;
  int32_t argmax;
  float lse;

  /// Natural logarithm of the probability that `id` comes next.
  double logprob(int32_t id) const { return double{logits[id]} - double{lse}; }
};

/// The prompts of a group of cases, which an engine reads densely.
class Prompts {
 public:
  /// A prompt, and the question after it.
  struct Text {
    std::span<const int32_t> prompt, question;
  };
  Prompts(decode::Engine& engine, std::vector<Text> texts);

  size_t size() const { return texts_.size(); }
  std::span<const int32_t> question(size_t i) const { return texts_[i].question; }
  decode::Engine& engine() const { return engine_; }
  const kv::ScopedSlots& slots() const { return slots_; }

  /// Calls `judge(protocol)` for sparse with the prompts read, then for dense with the questions
  /// read too.
  /// on_row   gets the row after each question that was read densely, before dense is judged
  void for_each(const std::vector<Protocol>& protocols,
                const std::function<void(size_t i, const LogitRow& row)>& on_row,
                const std::function<void(Protocol)>& judge);

 private:
  void read(std::span<const int32_t> Text::*part, bool ends_prompt,
            const std::function<void(size_t i, const LogitRow& row)>& on_row);

  decode::Engine& engine_;
  std::vector<Text> texts_;
  kv::ScopedSlots slots_;
};

/// One policy's continuation of the cases of a group: a fork of each of their prompts.
class Continuation {
 public:
  Continuation(const Prompts& prompts, int policy);

  /// New tokens of case i.
  struct Part {
    size_t i = 0;
    std::span<const int32_t> tokens;
  };
  using OnRow = std::function<void(size_t part, size_t row, const LogitRow& logits)>;
  /// Reads the tokens in as few forwards as the engine allows; `on_row` gets the row of each.
  void read(std::span<const Part> parts, const OnRow& on_row);
  /// The most likely token after each token of each part.
  std::vector<Ids> predict(std::span<const Part> parts);

  bool is_full(size_t i) const {
    return engine_.cache().length(slots_[i]) >= engine_.spec().max_tokens;
  }
  std::optional<Reads> reads(size_t i) const { return meter_.of(i); }

 private:
  void forward(std::span<const Part> parts, const OnRow& on_row);

  decode::Engine& engine_;
  kv::ScopedSlots slots_;
  ReadMeter meter_;
};

}  // namespace tandem::eval
