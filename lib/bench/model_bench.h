#pragma once
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/harness.h"
#include "bench/roofline.h"
#include "decode/engine.h"
#include "machine/hosted_plan.h"
#include "recipe/sections.h"

namespace tandem::bench {

/// The parts of a model that are measured.
enum class ModelPhase : uint8_t {
  prefill,    // whole prompts, up to the logits of their last tokens
  decode,     // one token of every sequence a step, logits included, sampling not
  linear,     // the four products of a layer, against oneDNN alone on the same shapes
  attention,  // prefill attention of one layer and one sequence
  load,       // opening a model and bringing its weights to the device, file in the page cache
  switching,  // from one of bench.adapters in the weights to the next
};
constexpr std::array<std::string_view, 6> enum_names(ModelPhase) {
  return {"prefill", "decode", "linear", "attention", "load", "switch"};
}
std::string_view phase_name(ModelPhase phase);

enum class AdapterKind : uint8_t { s2ft, lora };
constexpr std::array<std::string_view, 2> enum_names(AdapterKind) { return {"s2ft", "lora"}; }

/// Section `adapters` of it: of synthetic numbers.
struct AdapterBench {
  int n = 0;
  AdapterKind kind = AdapterKind::s2ft;
  double o = 0, up = 0, down = 0.03;
  int rank = 32;

  template <class V>
  void fields(V& v) {
    v("n", n, recipe::between(0, 1024),
      "number of adapters, assigned to the sequences of a batch in turn, 0 = none");
    v("kind", kind,
      "form of the adapters: s2ft (slices of o, up and down) or lora (factors of q, k, v, up and "
      "down)");
    v("o", o, recipe::between(0, 1), "share of the heads of o in an s2ft adapter");
    v("up", up, recipe::between(0, 1), "share of the channels of up in an s2ft adapter");
    v("down", down, recipe::between(0, 1), "share of the channels of down in an s2ft adapter");
    v("rank", rank, recipe::between(1, 4096), "rank of a lora adapter");
  }
  /// `8 s2ft`; empty without any.
  std::string text() const;
  nlohmann::ordered_json json() const;
};

/// Keys of section `bench` for the phases of a model.
struct ModelBench {
  std::vector<ModelPhase> phases = {ModelPhase::prefill, ModelPhase::decode};
  recipe::TokenCount new_tokens{64};
  bool random_kv = false;
  int min_runs = 10;
  recipe::Duration min_time{3.0}, max_time{0};
  AdapterBench adapters = {};

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    v("adapters", adapters, "synthetic adapters of the sequences");
    v("phases", phases, "phases to measure, one record each");
    v("new_tokens", new_tokens, at_least(1).up_to(1 << 20).unit("tokens"),
      "new tokens of a sequence; phase decode then restarts after run.context");
    v("random_kv", random_kv,
      "random keys and values in place of prefilled prompts, to skip prefill");
    v("min_runs", min_runs, at_least(1).up_to(10000), "minimum number of measured runs");
    v("min_time", min_time, at_least(0), "minimum measured time");
    v("max_time", max_time, at_least(0),
      "maximum measured time if samples are not steady, 0 = 5 times bench.min_time");
  }
  void check(recipe::Problems& p) const;
  bool has(ModelPhase phase) const;
};

/// One point of a sweep, its sizes resolved against a model.
struct ModelCase {
  ModelBench bench;
  recipe::Cache cache;
  DType dtype = DType::bf16;  // of weights, activations and KV
  Device device = {};
  std::optional<GpuCard> plan_for = {};  // as EngineSpec::plan_for
  int batch = 1;
  int context = 0;  // prompt tokens of a sequence
  int chunk = 2048;
  recipe::PrefillOrder order = recipe::PrefillOrder::chunks;
  uint64_t seed = 0;
  decode::Savings savings = {};
  int n_ranks = 1;                                      // that share the model
  std::shared_ptr<Comm> comm = nullptr;                 // as EngineSpec::comm
  std::function<double(double ms)> agree_on_time = {};  // as MeasureRules::agree
  std::optional<machine::HostedPlan> hosted =
      {};  // of keys in host memory: the cache is its choice

  /// Tokens of a sequence at its longest.
  int max_tokens() const;
  MeasureRules rules() const;
};

/// errors   kind recipe: sizes beyond the model's
ModelCase model_case(const ModelBench& bench, const recipe::Run& run, const recipe::Cache& cache,
                     recipe::Compute compute, const model::ModelConfig& config, Device device = {});

/// Gives the model the adapters of bench.adapters.
void add_adapters(decode::ModelFiles& files, const ModelBench& bench, uint64_t seed);

/// Every byte of a phase. Prefill and decode share one engine and so one plan.
MemoryPlan phase_plan(ModelPhase phase, const ModelCase& c, const decode::ModelFiles& files);
/// The engine of a phase that has one.
decode::EngineSpec phase_engine(ModelPhase phase, const ModelCase& c);

/// What query heads attended to in the layers where a policy chose keys, as shares of the sequence.
struct KeyShares {
  double selected = 0;  // chosen by content
  double fixed = 0;     // sinks, recent and generated tokens
  /// Relative error of the sum of weights that a policy which measures it stays within in 95 of 100
  /// cases, mean; -1: not measured.
  double error = -1;
};

struct PhaseResult {
  ModelPhase phase = ModelPhase::prefill;
  Samples samples = {};
  double tokens = 0;                        // of one run; 0 for parts of a model
  Work work = {};                           // of one run
  double linear_share = 0;                  // of work.flops that dense layers do; 0 = unknown
  std::optional<Comparison> baseline = {};  // a: ours, b: oneDNN alone
  std::optional<KeyShares> keys = {};       // of decode under a policy that chooses keys
  Samples host = {};  // of decode on a GPU: what the CPU does for a step, waiting left out
};

/// Prefill and decode of a whole model, on one engine.
class EngineBench {
 public:
  /// Loads the weights, reporting the share loaded.
  /// errors   kind memory, input, interrupted
  EngineBench(decode::ModelFiles files, const ModelCase& c, const Interrupted& interrupted,
              const std::function<void(double share)>& on_load = {});

  /// errors   kind interrupted; kind numeric: logits that are not finite
  PhaseResult prefill();
  /// From the prompts that prefill() left, else its own. Every new_tokens steps all sequences start
  /// over at run.context, by forking their prompts: policies that evict keys cannot roll back.
  PhaseResult decode();

  const MemoryPlan& memory_plan() const { return engine_.memory_plan(); }
  const decode::Engine& engine() const { return engine_; }

 private:
  void read_prompts();
  void restart();
  void fork_prompts();
  void decode_on_gpu(int length, Samples& host);

  ModelCase case_;
  decode::Engine engine_;
  std::vector<std::vector<int32_t>> tokens_;  // [batch, max_tokens]
  std::vector<int> prompts_, forks_;          // slots, empty until made
  bool prompts_read_ = false;
  int n_forwards_ = 0;  // that reading the prompts took
};

/// Loads an engine again and again; the memory of the last one is freed in between, untimed. The
/// runs for warming up bring a file into the page cache. Of synthetic models: making the weights.
/// on_load  called with the share of the weights that the run in progress has loaded
/// errors   as EngineBench
PhaseResult bench_load(const std::function<decode::ModelFiles()>& open, const ModelCase& c,
                       const Interrupted& interrupted,
                       const std::function<void(double share)>& on_load = {});
/// An engine with bench.adapters of which one is in the weights.
/// errors   as EngineBench
std::unique_ptr<decode::Engine> switching_engine(
    decode::ModelFiles files, const ModelCase& c, const Interrupted& interrupted,
    const std::function<void(double share)>& on_load = {});
/// Times of switches, each to the next of them: the host's, waits for the device included.
PhaseResult bench_switch(decode::Engine& engine, const ModelCase& c);
/// errors   kind interrupted
PhaseResult bench_linear(const ModelCase& c, const model::ModelConfig& config,
                         const Interrupted& interrupted);
PhaseResult bench_attention(const ModelCase& c, const model::ModelConfig& config,
                            const Interrupted& interrupted);

}  // namespace tandem::bench
