#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/engine.h"
#include "eval/perplexity.h"
#include "eval/score_stats.h"
#include "eval/settings.h"
#include "kv/attention_observer.h"

namespace tandem::eval {

/// What a policy makes of attention from the very queries, keys and values that full attention
/// read: means over rows, query heads and those layers in which the policy does not read all keys.
struct AttentionQuality {
  int64_t n_queries = 0;  // rows x layers x query heads; 0: it read all keys everywhere
  Estimate error;         // |o - o_full| / |o_full| of the output
  Estimate lse_error;     // |lse - lse_full|, natural log
  /// What the ranking of keys costs: 1 - the softmax mass of the keys that it reads exactly over
  /// that of as many best ones, both among the keys that it chooses from (no sinks, recent or new
  /// tokens). Absent where no key is chosen to be read exactly.
  std::optional<Estimate> ranking_loss = {};
  // Of a query head:
  double visible = 0;   // keys of full attention
  double selected = 0;  // keys chosen by content, sampled ones included
  double exact = 0;     // of them, those that the ranking loss is about
  double fixed = 0;     // sinks, recent and generated tokens
  double index_bytes = 0, key_bytes = 0;
};

/// Compares readings in steps of full attention: all policies of a cache, the first of which is it.
class AttentionMeter final : public kv::AttentionObserver {
 public:
  explicit AttentionMeter(int n_policies) : sums_(static_cast<size_t>(n_policies)) {}

  /// What follows is independent of what came before; standard errors are those of such parts.
  void begin_part();
  void attended(kv::Cache& cache, int layer, const kv::Step& step, const Tensor& q) override;
  /// By policy; nothing of the first.
  std::vector<AttentionQuality> result() const;

 private:
  struct Sums {
    std::vector<Block> error, lse_error, ranking_loss;  // by part
    double exact = 0;
    kv::KeyUsage usage;
  };
  /// Softmax scores of the rows over all keys that they see.
  void score_keys(const kv::Cache& cache, int layer, const kv::Step& step, const Tensor& q);
  void compare(size_t policy, const kv::KeyUsage& usage);

  std::vector<Sums> sums_;
  // Of the layer in hand:
  std::vector<float> full_o_, full_lse_, o_, lse_;  // [R, Hq, d], [R, Hq]
  std::vector<float> scores_;                       // [R, Hq, stride]
  size_t stride_ = 0;                               // keys
  std::vector<double> losses_, exact_;              // [R, Hq]; a loss below 0: none
};

/// Reads each window densely but for its last `rows` tokens, which follow under full attention; all
/// policies are compared in these steps, so that no policy's error reaches another layer or row.
/// Standard errors take documents as independent, or windows where there is one document.
/// windows  longer than `rows`
/// result   by policy, nothing of the first; empty when `progress` (given the windows done) returned
///          false
/// errors   kind numeric, memory
std::vector<AttentionQuality> measure_attention(decode::Engine& engine,
                                                std::span<const Window> windows, int rows,
                                                const std::function<bool(int64_t done)>& progress);

/// Engine that measure_attention needs for windows of at most `context` tokens.
decode::EngineSpec attention_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                         int prefill_chunk, int context);
/// Bytes that measure_attention holds in addition to the engine.
size_t attention_buffer_bytes(const model::ModelConfig& config, int context);

}  // namespace tandem::eval
