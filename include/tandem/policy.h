#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem {

/// Sizes of a model's attention.
struct AttentionShape {
  int layers = 0;
  int heads = 0;     // query heads of a layer
  int kv_heads = 0;  // query head h reads KV head h / (heads / kv_heads)
  int head_dim = 0;
};

/// Keys of one sequence, rotated to their positions. Valid only during the call that gets it.
class Keys {
 public:
  virtual ~Keys() = default;
  virtual int n_tokens() const = 0;
  /// Writes the key of a token in f32.
  /// shapes   out [head_dim]
  /// errors   kind usage: no such layer, KV head or token
  virtual void read(int layer, int kv_head, int token, float* out) const = 0;
};

/// A query head at one position of a sequence.
struct Query {
  int sequence = 0;
  int layer = 0;
  int head = 0, kv_head = 0;
  int position = 0;          // it may read tokens 0 to position
  float scale = 1;           // of scores: attention weights are softmax(scale q k)
  std::span<const float> q;  // [head_dim]
  const Keys& keys;          // those of its layer and KV head, also of draft tokens before it
};

/// The tokens that a query reads.
struct Selection {
  std::vector<int32_t> tokens;  // each at most once, in any order
  /// Numbers added to the scores of the tokens, such as -log of the probability that a token is
  /// drawn. Empty = 0 for all.
  std::vector<float> log_weights;
};

/// An attention policy: chooses the tokens of the KV cache that each query head reads. It runs on
/// the CPU, and one object serves one model. Prompts are attended in full. The policy applies to
/// decode steps and Session::read. The last token of an answer becomes part of the next prompt.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Returns a name for messages and reports.
  virtual std::string name() const = 0;
  /// Called once, when the model has been loaded.
  virtual void begin(const AttentionShape&) {}
  /// The keys of a sequence have grown: a prompt was read, or new tokens were accepted. Queries
  /// come first: `select` sees the rows of a read, or draft tokens, before this call.
  virtual void on_tokens(int /*sequence*/, const Keys&) {}
  /// `to` becomes a copy of `from`.
  virtual void on_fork(int /*from*/, int /*to*/) {}
  /// The sequence is cut to its first n tokens.
  virtual void on_rewind(int /*sequence*/, int /*n_tokens*/) {}
  /// The sequence ends; its number may be used again.
  virtual void on_end(int /*sequence*/) noexcept {}
  /// Chooses at least one token for a query. Called by several threads at once. It must not use the
  /// model.
  /// errors   kind input: no token, or one that is negative, above the position or named twice;
  ///          weights that are missing or no numbers
  virtual void select(const Query& query, Selection& selection) const = 0;
};

}  // namespace tandem
