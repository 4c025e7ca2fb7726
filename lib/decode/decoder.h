#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "decode/engine.h"

namespace tandem::decode {

/// Room that rounds need in an engine beyond the texts themselves.
struct RoundNeeds {
  int rows = 0;        // of the forwards of a round together
  int logit_rows = 0;  // alive at once
  int tokens = 0;      // beyond a sequence's text
  int ahead = 0;       // as many more where a round is laid out while another is under way

  /// Returns the needs of an engine that serves both, one after the other.
  RoundNeeds with(const RoundNeeds& other) const {
    return {std::max(rows, other.rows), std::max(logit_rows, other.logit_rows),
            std::max(tokens, other.tokens), std::max(ahead, other.ahead)};
  }
};

/// Produces the next tokens of a batch: one a step, or several when a draft proposes and the model
/// verifies. Results are collected in launch order. Up to depth() launches may be in flight; a
/// launch does not see results that have not been collected.
class Decoder {
 public:
  virtual ~Decoder() = default;

  /// The policies of the engine's cache that read the sequences.
  virtual kv::Readers readers() const { return 0; }
  /// Begins anew; results not yet collected are forgotten.
  virtual void start(const SamplerSpec& spec) = 0;
  virtual int depth() const = 0;
  virtual int in_flight() const = 0;
  /// The first tokens, from the logits of the prompts' ends.
  /// shapes   logits [seqs, vocab]
  virtual void draw(std::span<const DrawSeq> seqs, const Tensor& logits) = 0;
  /// Puts a step in flight: the last token drawn for each sequence goes through the model.
  virtual void step(std::span<const DrawSeq> seqs) = 0;
  /// Tokens that a step gives a sequence, as far as known.
  virtual double tokens_a_step() const { return 1; }
  /// What the oldest draw or step gave, for each of its sequences at least one token. Some of them
  /// may be more than the sequence has room for.
  virtual std::vector<std::vector<Drawn>> collect() = 0;
  /// The sequence of this slot has ended.
  virtual void forget(int slot) = 0;
  /// Weights, keys and values that steps have read so far.
  virtual double bytes_read() const = 0;
};

/// One token a step, drawn by the engine's sampler.
/// policy   of the engine's cache, which reads
std::unique_ptr<Decoder> plain_decoder(Engine& engine, int policy = 0);

}  // namespace tandem::decode
