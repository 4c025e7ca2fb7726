#pragma once

namespace tandem::kv {

/// What a cache reports of all its sequences to something outside it that keeps state by slot,
/// whichever policies read them. After the policies.
class SequenceListener {
 public:
  virtual ~SequenceListener() = default;
  /// A prompt ends: its rows have gone through all layers. May come again after more tokens were
  /// prefilled.
  virtual void on_prompt(int slot) = 0;
  /// `to` becomes a copy of `from`; `slot` ends; `slot` is cut to n tokens.
  virtual void on_fork(int from, int to) = 0;
  virtual void on_release(int slot) = 0;
  virtual void on_truncate(int slot, int n) = 0;
};

}  // namespace tandem::kv
