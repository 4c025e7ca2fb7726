#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/percentile.h"
#include "decode/prompts.h"
#include "io/file.h"
#include "kv/policies/token_index.h"
#include "kv/scoped_slots.h"
#include "ops/sampling.h"

namespace tandem::eval {
namespace {

using decode::Engine;

/// Rows of one forward, of one piece of logits, and tokens of one block of the standard error.
constexpr size_t kBlockTokens = 256;

Ids json_ids(const std::filesystem::path& path, const decode::ModelFiles& files) {
  return decode::parse_ids(io::read_file(path), files.config.vocab_size, path.string());
}

const text::Tokenizer& tokenizer_for(const std::filesystem::path& path,
                                     const decode::ModelFiles& files) {
  if (files.tokenizer == nullptr)
    throw input_error(files.name, "the text {} needs a tokenizer, but the model has none",
                      path.string())
        .hint("set data.path to a .json file with an array of token ids");
  return *files.tokenizer;
}

/// The documents of a text.
std::vector<TextIds> load_documents(const std::filesystem::path& path,
                                    const decode::ModelFiles& files) {
  if (path.extension() == ".json") return {{{}, json_ids(path, files)}};
  const text::Tokenizer& tokenizer = tokenizer_for(path, files);
  std::vector<TextIds> documents;
  for (Ids& ids : encode_documents(tokenizer, path))
    documents.push_back({tokenizer.prefix(), std::move(ids)});
  return documents;
}

/// KL(p || q) of two softmax distributions over logits.
double divergence(const float* p, float p_lse, const float* q, float q_lse, int64_t n) {
  double kl = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double log_p = double{p[i]} - double{p_lse};
    kl += std::exp(log_p) * (log_p - (double{q[i]} - double{q_lse}));
  }
  return std::max(kl, 0.0);
}

/// Sums over the rows of one policy; blocks are independent.
struct Tally {
  std::vector<Block> nll, difference, kl_sums;
  std::vector<double> kl;
  int64_t agreed = 0;
};

/// Negative log-likelihood of the tokens that follow a chunk of rows.
std::vector<double> losses(const Tensor& logits, const ops::LogitStats& stats,
                           std::span<const int32_t> next) {
  std::vector<double> list;
  for (size_t r = 0; r < next.size(); ++r) {
    const float* row = logits.slice(static_cast<int64_t>(r), 1).as<float>();
    list.push_back(double{stats.lse[r]} - double{row[next[r]]});
  }
  return list;
}

/// A sequence under one policy.
struct Seat {
  Engine* engine = nullptr;
  int slot = 0;
};

class TextMeter {
 public:
  TextMeter(const Panel& panel, std::span<const Window> windows)
      : by_document_(windows.front().document != windows.back().document),
        tallies_(static_cast<size_t>(panel.n_policies())),
        full_logits_(kBlockTokens * static_cast<size_t>(panel.config().vocab_size)) {}

  void begin_window(int document);
  /// seats        by policy
  /// full_phase   how full attention reads the rows
  void run_chunk(std::span<const Seat> seats, const Ids& window, size_t begin,
                 kv::Phase full_phase);
  std::vector<TextQuality> result() const;

 private:
  void take(size_t policy, const Tensor& logits, std::span<const int32_t> next);
  void begin_block();

  bool by_document_;
  int document_ = -1;
  std::vector<Tally> tallies_;
  // Of the chunk in flight, under full attention.
  std::vector<float> full_logits_;  // [kBlockTokens, V]
  ops::LogitStats full_stats_;
  std::vector<double> full_losses_;
};

void TextMeter::begin_window(int document) {
  if (by_document_ && document != document_) begin_block();
  document_ = document;
}

void TextMeter::begin_block() {
  for (Tally& tally : tallies_)
    for (auto* blocks : {&tally.nll, &tally.difference, &tally.kl_sums}) blocks->emplace_back();
}

void TextMeter::run_chunk(std::span<const Seat> seats, const Ids& window, size_t begin,
                          kv::Phase full_phase) {
  if (!by_document_) begin_block();
  const size_t n = std::min(kBlockTokens, window.size() - begin);
  const std::span<const int32_t> rows = std::span(window).subspan(begin, n);
  // The last row of a window predicts a token that is not there.
  const auto next = std::span(window).subspan(begin + 1, std::min(n, window.size() - begin - 1));
  for (size_t policy = 0; policy < seats.size(); ++policy) {
    const decode::SeqTokens part[] = {{seats[policy].slot, rows, begin + n == window.size()}};
    const kv::Phase phase = policy == 0 ? full_phase : kv::Phase::extend;
    seats[policy].engine->forward_all(
        phase, part, [&](int, const Tensor& logits) { take(policy, logits, next); });
  }
}

void TextMeter::take(size_t policy, const Tensor& logits, std::span<const int32_t> next) {
  if (next.empty()) return;
  const ops::LogitStats stats = ops::logit_stats(logits);
  const std::vector<double> loss = losses(logits, stats, next);
  const auto n = static_cast<int64_t>(next.size());
  Tally& tally = tallies_[policy];
  const double sum = std::accumulate(loss.begin(), loss.end(), 0.0);
  tally.nll.back().add(sum, n);
  if (policy == 0) {
    std::memcpy(full_logits_.data(), logits.raw(), logits.bytes());
    full_stats_ = stats;
    full_losses_ = loss;
    return;
  }
  const double full_sum = std::accumulate(full_losses_.begin(), full_losses_.end(), 0.0);
  tally.difference.back().add(sum - full_sum, n);
  std::vector<double> kl(next.size());
  const int64_t vocab = logits.row_size();
  parallel_for(static_cast<int>(n), [&](int i) {
    const auto r = static_cast<size_t>(i);
    kl[r] = divergence(full_logits_.data() + i * vocab, full_stats_.lse[r],
                       logits.as<float>() + i * vocab, stats.lse[r], vocab);
  });
  tally.kl_sums.back().add(std::accumulate(kl.begin(), kl.end(), 0.0), n);
  tally.kl.insert(tally.kl.end(), kl.begin(), kl.end());
  for (size_t r = 0; r < next.size(); ++r)
    tally.agreed += stats.argmax[r] == full_stats_.argmax[r] ? 1 : 0;
}

std::vector<TextQuality> TextMeter::result() const {
  std::vector<TextQuality> list;
  for (const Tally& tally : tallies_) {
    TextQuality& q = list.emplace_back();
    for (const Block& block : tally.nll) q.n_tokens += block.n;
    q.nll = mean_of_blocks(tally.nll);
    q.ppl.mean = std::exp(q.nll.mean);
    if (q.nll.stderr_) q.ppl.stderr_ = q.ppl.mean * *q.nll.stderr_;
    if (tally.kl.empty()) continue;
    const auto n = static_cast<double>(tally.kl.size());
    q.nll_difference = mean_of_blocks(tally.difference);
    q.kl = mean_of_blocks(tally.kl_sums);
    std::vector<double> sorted = tally.kl;
    std::sort(sorted.begin(), sorted.end());
    q.kl_p99 = percentile(sorted, 0.99);
    q.top1_agree = static_cast<double>(tally.agreed) / n;
  }
  return list;
}

}  // namespace

TextIds load_ids(const std::filesystem::path& path, const decode::ModelFiles& files) {
  if (path.extension() == ".json") return {{}, json_ids(path, files)};
  return {tokenizer_for(path, files).prefix(), encode_file(*files.tokenizer, path)};
}

std::vector<Window> load_windows(const std::filesystem::path& path, const decode::ModelFiles& files,
                                 int context) {
  std::vector<Window> windows;
  size_t n_ids = 0;
  const std::vector<TextIds> documents = load_documents(path, files);
  for (size_t d = 0; d < documents.size(); ++d) {
    const auto& [prefix, ids] = documents[d];
    const size_t room = static_cast<size_t>(context) - std::min(prefix.size(), size_t(context) - 1);
    n_ids += ids.size();
    for (size_t begin = 0; begin < ids.size(); begin += room) {
      Window window{prefix, static_cast<int>(d)};
      const size_t end = std::min(ids.size(), begin + room);
      window.ids.insert(window.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
                        ids.begin() + static_cast<std::ptrdiff_t>(end));
      if (window.ids.size() >= 2) windows.push_back(std::move(window));
    }
  }
  if (windows.empty())
    throw input_error(path.string(), "expected at least 2 tokens, found {}", n_ids);
  return windows;
}

std::vector<Window> load_answers(const std::filesystem::path& path, const decode::ModelFiles& files,
                                 int context, uint64_t seed, int n) {
  const text::Tokenizer& tokenizer = tokenizer_for(path, files);
  std::vector<Window> windows;
  for (const OwnQuestion& q : read_own_task({}, path.string(), files, seed, n).questions) {
    const Ids answer =
        q.choices.empty() ? encode_piece(tokenizer, q.answers.front()) : q.choices[q.right];
    Window& window = windows.emplace_back(q.prompt, static_cast<int>(windows.size()),
                                          static_cast<int>(answer.size()));
    for (const Ids& part : {q.question, answer})
      window.ids.insert(window.ids.end(), part.begin(), part.end());
    if (std::ssize(window.ids) > context)
      throw input_error(q.where, "prompt and answer have {} tokens, more than the context of {}",
                        window.ids.size(), context)
          .hint("raise run.context, or shorten the prompt");
  }
  return windows;
}

std::vector<Window> longer_windows(std::vector<Window> windows, int n, int most, const char* key) {
  std::vector<std::pair<int, size_t>> order;  // number within its document, window
  int in_document = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    in_document = i > 0 && windows[i].document == windows[i - 1].document ? in_document + 1 : 0;
    if (windows[i].ids.size() > static_cast<size_t>(n)) order.emplace_back(in_document, i);
  }
  if (order.empty())
    throw recipe_error(key, "expected a window of more than {} tokens, found only shorter ones", n)
        .hint(fmt::format("lower {}, or give a longer text", key));
  std::ranges::sort(order);
  order.resize(std::min(order.size(), static_cast<size_t>(most)));
  // Windows of a document stay together.
  std::ranges::sort(order, {}, &std::pair<int, size_t>::second);
  std::vector<Window> chosen;
  for (const auto& [_, i] : order) chosen.push_back(std::move(windows[i]));
  return chosen;
}

std::vector<TextQuality> measure_text(const Panel& panel, std::span<const Window> windows,
                                      int scored, const std::function<bool(int64_t)>& progress) {
  TextMeter meter(panel, windows);
  int64_t done = 0;
  for (const auto& [ids, document, own_scored] : windows) {
    size_t begin = 0;
    // This token predicts the first that is scored.
    if (const int last = own_scored > 0 ? own_scored : scored; last > 0)
      begin = ids.size() - static_cast<size_t>(last) - 1;
    std::vector<std::unique_ptr<kv::ScopedSlots>> held;
    std::vector<Seat> seats(static_cast<size_t>(panel.n_policies()));
    for (const Panel::Member& member : panel.members()) {
      kv::Cache& cache = member.engine->cache();
      kv::ScopedSlots& prompts = *held.emplace_back(std::make_unique<kv::ScopedSlots>(cache));
      kv::ScopedSlots& slots = *held.emplace_back(std::make_unique<kv::ScopedSlots>(cache));
      if (begin > 0) {
        prompts.create(cache.all_readers());
        const decode::SeqTokens prompt[] = {{prompts[0], std::span(ids).first(begin)}};
        member.engine->prefill(prompt, {});
      }
      for (size_t i = 0; i < member.policies.size(); ++i) {
        const int reading = static_cast<int>(i);
        const int slot = begin > 0 ? slots.fork(prompts[0], reading) : slots.create(reading);
        seats[static_cast<size_t>(member.policies[i])] = {member.engine, slot};
      }
    }
    done += static_cast<int64_t>(begin);
    meter.begin_window(document);
    const kv::Phase full_phase = begin > 0 ? kv::Phase::extend : kv::Phase::prefill;
    for (; begin < ids.size(); begin += kBlockTokens) {
      meter.run_chunk(seats, ids, begin, full_phase);
      done += static_cast<int64_t>(std::min(kBlockTokens, ids.size() - begin));
      if (progress && !progress(done)) return {};
    }
  }
  return meter.result();
}

decode::EngineSpec text_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int context, int scored, int prefill_chunk) {
  const auto n = static_cast<int>(policies.size());
  decode::EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk = std::max(static_cast<int>(kBlockTokens), prefill_chunk);
  spec.max_extend_rows = static_cast<int>(kBlockTokens);
  spec.max_tokens = context;
  if (scored == 0) {
    spec.max_seqs = n;
    spec.total_tokens = int64_t{context} * n;
  } else {  // a prompt, and a fork of it for each policy
    spec.max_seqs = n + 1;
    if (scored < kv::TokenIndex::kMaxForkTokens) spec.max_prompts = 1;
    spec.total_tokens = context + int64_t{n} * (scored + 1);
  }
  spec.max_logit_rows = static_cast<int>(kBlockTokens);
  read_by(spec, policies);
  return spec;
}

size_t text_buffer_bytes(const model::ModelConfig& config) {
  return kBlockTokens * static_cast<size_t>(config.vocab_size) * sizeof(float);
}

}  // namespace tandem::eval
