#pragma once
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "decode/engine.h"
#include "eval/panel.h"
#include "eval/score_stats.h"
#include "eval/settings.h"

namespace tandem::eval {

/// Quality of one policy on running text. Natural logarithms; the standard errors take documents as
/// independent, in a text of one document blocks of 256 tokens.
struct TextQuality {
  int64_t n_tokens = 0;  // scored
  Estimate nll;          // mean negative log-likelihood per token
  Estimate ppl;          // exp(nll), standard error by the delta method
  // Against full attention over the same rows; unused for policy 0.
  Estimate nll_difference;
  Estimate kl;            // KL(full || policy) per token
  double kl_p99 = 0;      // of single tokens
  double top1_agree = 0;  // share of tokens whose most likely next token is the same
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
  int scored = 0;    // last tokens that are scored; 0: as measure_text says
};

/// Text cut into windows of at most `context` tokens; each begins with what the tokenizer puts in
/// front (BOS). A rest of fewer than two tokens is left out. A text may hold several documents,
/// with the record separator U+001E between them: no window holds tokens of two.
/// path     text; a name that ends in .json holds an array of token ids, one document as it is
/// errors   kind input: unreadable, ids out of range, nothing to score, text without a tokenizer
std::vector<Window> load_windows(const std::filesystem::path& path, const decode::ModelFiles& files,
                                 int context);

/// Questions of a JSONL file, as read_own_task reads and draws them. Each is a document of one
/// window, the prompt and its first accepted answer, of which the answer is scored.
/// errors   as read_own_task; kind input: a question is longer than the context
std::vector<Window> load_answers(const std::filesystem::path& path, const decode::ModelFiles& files,
                                 int context, uint64_t seed, int n);

/// At most `most` windows of more than `n` tokens: the first of each document, then the second
/// ones.
/// errors   kind recipe: none is as long; names the setting `key`
std::vector<Window> longer_windows(std::vector<Window> windows, int n, int most, const char* key);

/// Scores every token of the windows but the first of each, all policies row by row on the same
/// text. Policy 0 runs as a dense prefill, the others through `extend` in chunks: their rules hold
/// for every row, as if tokens came one at a time.
/// scored   0, or: the last tokens that are scored of each window that does not say. The rest is
///          then a prompt, read densely once by each engine, which all policies continue through
///          `extend`; windows are longer than scored + 1
/// result   by policy; empty when `progress` (given the windows' tokens done) returned false
/// errors   kind numeric, memory
std::vector<TextQuality> measure_text(const Panel& panel, std::span<const Window> windows,
                                      int scored,
                                      const std::function<bool(int64_t done)>& progress);

/// An engine of measure_text that reads by these policies, for windows of at most `context` tokens,
/// of which `scored` are scored, or all where that is 0.
decode::EngineSpec text_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int context, int scored = 0, int prefill_chunk = 0);
/// Bytes that measure_text holds in addition to the engine.
size_t text_buffer_bytes(const model::ModelConfig& config);

}  // namespace tandem::eval
