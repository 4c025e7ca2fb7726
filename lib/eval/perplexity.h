#pragma once
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "decode/engine.h"
#include "eval/score_stats.h"
#include "eval/settings.h"

namespace tandem::eval {

/// Quality of one policy on running text. Natural logarithms; the standard errors take blocks of
/// 256 tokens as independent.
struct TextQuality {
  int64_t n_tokens = 0;  // scored
  Estimate nll;          // mean negative log-likelihood per token
  Estimate ppl;          // exp(nll), standard error by the delta method
  // Against full attention over the same rows; unused for policy 0.
  Estimate nll_difference;
  double kl_mean = 0, kl_p99 = 0;  // KL(full || policy) per token
  double top1_agree = 0;           // share of tokens whose most likely next token is the same
};

/// A text as ids, and what the tokenizer puts in front of every window of it (BOS).
struct TextIds {
  Ids prefix, ids;
};

/// path     text; a name that ends in .json holds an array of token ids, used as they are
/// errors   kind input: unreadable, ids out of range, text without a tokenizer
TextIds load_ids(const std::filesystem::path& path, const decode::ModelFiles& files);

/// A part of a text that is read by itself.
struct Window {
  Ids ids;
  int document = 0;  // of the text, in order
};

/// Text cut into windows of at most `context` tokens; each begins with what the tokenizer puts in
/// front (BOS). A rest of fewer than two tokens is left out. A text may hold several documents,
/// with the record separator U+001E between them: no window holds tokens of two.
/// path     text; a name that ends in .json holds an array of token ids, one document as it is
/// errors   kind input: unreadable, ids out of range, nothing to score, text without a tokenizer
std::vector<Window> load_windows(const std::filesystem::path& path, const decode::ModelFiles& files,
                                 int context);

/// Scores every token of the windows but the first of each, all policies row by row on the same
/// text. Policy 0 runs as a dense prefill, the others through `extend` in chunks: their rules hold
/// for every row, as if tokens came one at a time.
/// result   by policy; empty when `progress` (given the windows' tokens done) returned false
/// errors   kind numeric, memory
std::vector<TextQuality> measure_text(decode::Engine& engine, std::span<const Window> windows,
                                      const std::function<bool(int64_t done)>& progress);

/// Engine that measure_text needs for windows of at most `context` tokens.
decode::EngineSpec text_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int context);
/// Bytes that measure_text holds in addition to the engine.
size_t text_buffer_bytes(const model::ModelConfig& config);

}  // namespace tandem::eval
