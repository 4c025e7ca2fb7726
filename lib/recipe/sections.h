#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/cache_section.h"
#include "recipe/fields.h"
#include "recipe/gpu_name.h"
#include "recipe/offload.h"
#include "recipe/sparse_section.h"
#include "recipe/variables.h"

// The sections that tools share, spelled the same everywhere. A tool's recipe struct holds those
// that it reads; any other section in a recipe is an error.
namespace tandem::recipe {

enum class Compute : uint8_t { bf16, f32 };
constexpr std::array<std::string_view, 2> enum_names(Compute) { return {"bf16", "f32"}; }

/// Weights in memory: numbers, or codes of eight or four bits. A group of int8 or int4 shares a
/// scale, an output of fp8 has one. auto: as the file has them.
enum class WeightType : uint8_t { automatic, bf16, f32, int8, int4, fp8 };
constexpr std::array<std::string_view, 6> enum_names(WeightType) {
  return {"auto", "bf16", "f32", "int8", "int4", "fp8"};
}
inline bool is_quantized(WeightType type) { return type >= WeightType::int8; }
/// True for integers in groups.
inline bool has_groups(WeightType type) {
  return type == WeightType::int8 || type == WeightType::int4;
}

/// The input of products with quantised weights.
enum class Activations : uint8_t { automatic, int8, fp8, compute };
constexpr std::array<std::string_view, 4> enum_names(Activations) {
  return {"auto", "int8", "fp8", "compute"};
}

/// What a fine-tuning run wrote, in addition to the model.
struct Adapter {
  static constexpr std::string_view kItems = "adapters", kExample = "{path: run/adapter}";
  /// Far beyond any use.
  static constexpr double kMostWeight = 1e6;

  std::string name = {};
  std::filesystem::path path = {};
  double weight = 1;
  bool force = false;

  template <class V>
  void fields(V& v) {
    v("name", name, "name by which prompts select the adapter, empty = merged into the weights");
    v("path", path, required_input(),
      "run folder of s2ft-train, its adapter/ folder, or a LoRA or DoRA folder of PEFT");
    v("weight", weight, between(-kMostWeight, kMostWeight),
      "scale of the adapter's change, 1 = unscaled");
    v("force", force, "use of an adapter that was trained on another model, if its shapes fit");
  }
};

/// The form of weights in memory.
struct Weights {
  WeightType weights = WeightType::automatic;
  int group = 64;
  WeightType head = WeightType::automatic, embedding = WeightType::automatic;
  bool scale_search = true;
  Activations activations = Activations::automatic;

  template <class V>
  void fields(V& v) {
    form_fields(v);
    v("activations", activations,
      "rounding of activations: int8 (int8 and int4 weights, CPU), fp8 (fp8 weights, GPU) or "
      "compute, none. auto = int8 or compute");
  }
  void check(Problems& p) const;
  bool operator==(const Weights&) const = default;

 protected:
  template <class V>
  void form_fields(V& v) {
    v("weights", weights,
      "weights in memory: bf16 or f32, as compute, or quantized at load time: int8, int4, fp8. "
      "auto = as in the file");
    v("group", group, between(32, 128).unit("weights"),
      "weights that share a scale: 32, 64 or 128, only with weights: int8 or int4");
    v("head", head,
      "weights of the LM head, and of a tied embedding, with quantized weights. auto = int8, "
      "or fp8 with weights: fp8");
    v("embedding", embedding,
      "weights of an embedding that is not tied, with quantized weights. auto = int8, or fp8 with "
      "weights: fp8");
    v("scale_search", scale_search,
      "choice of each scale by the least square error, only with weights: int8 or int4");
  }
};

struct Model : Weights {
  ModelName path;
  Compute compute = Compute::bf16;
  Offload offload;
  std::filesystem::path state;
  std::vector<Adapter> adapters;

  template <class V>
  void fields(V& v) {
    v("path", path, required_input(),
      "Hugging Face model folder, name of a known model, or synthetic:NAME (random weights)");
    v("compute", compute, "data type of activations");
    Weights::fields(v);
    v("offload", offload,
      "weight offloading: layers whose weights are copied from host memory to the GPU in every "
      "forward. auto = the layers that do not fit");
    v("state", state, optional_input(), "saved prefill state to continue from, empty = none");
    v("adapters", adapters, adapters_text());
  }
  void check(Problems& p) const;

 protected:
  static constexpr std::string_view adapters_text() {
    return "adapters {path, weight, name, force}. Adapters without a name are merged into the "
           "weights at load time, in this order. Named adapters apply to the prompts that name "
           "them";
  }
};

/// In which order a prompt goes through the model.
enum class PrefillOrder : uint8_t { chunks, layers };
constexpr std::array<std::string_view, 2> enum_names(PrefillOrder) { return {"chunks", "layers"}; }

struct Run {
  std::string device = "auto";
  int threads = 0;
  int64_t seed = 0;
  TokenCount context{0};
  TokenCount prefill_chunk{2048};
  PrefillOrder prefill_order = PrefillOrder::chunks;
  int batch = 0;
  std::optional<ByteSize> host_memory_limit, gpu_memory_limit;
  std::optional<GpuName> plan_for;

  template <class V>
  void fields(V& v) {
    v("device", device, "device: cpu, cuda or cuda:N[,M..]. auto = cuda:0 if usable, else cpu");
    v("threads", threads, between(0, 1024),
      "number of CPU threads, 0 = physical cores available to the process");
    v("seed", seed, at_least(0), "random seed");
    v("context", context, at_least(0).unit("tokens"),
      "maximum sequence length, 0 = the model's limit");
    v("prefill_chunk", prefill_chunk, between(1, 1 << 20).unit("tokens"),
      "prompt tokens per prefill forward");
    v("prefill_order", prefill_order,
      "order of prefill: chunks, or layers (layer-wise prefill), which copies offloaded weights "
      "once per prompt");
    v("batch", batch, at_least(0).unit("sequences"),
      "number of sequences that run together, 0 = one per prompt up to 32");
    v("host_memory_limit", host_memory_limit, at_least(0),
      "limit of host memory for the plan, null = free memory");
    v("gpu_memory_limit", gpu_memory_limit, at_least(0),
      "limit of GPU memory for the plan, including the driver's share. null = free memory");
    v("plan_for", plan_for, plan_for_text());
  }
  void check(Problems& p) const;

 protected:
  static std::string_view plan_for_text();
};

/// What becomes of adapters that have names.
enum class AdapterUse : uint8_t { automatic, mix, switched };
constexpr std::array<std::string_view, 3> enum_names(AdapterUse) {
  return {"auto", "mix", "switch"};
}

/// Section `run` of tools whose prompts may name an adapter.
/// A run that several ranks may share, each with a part of the model.
struct RankedRun : Run {
  std::optional<int> rank, world_size;
  std::string rendezvous;
  double timeout = 60;

  template <class V>
  void fields(V& v) {
    Run::fields(v);
    rank_fields(v);
  }

 protected:
  template <class V>
  void rank_fields(V& v) {
    v("rank", rank, at_least(0),
      "index of this process, from 0. null = from mpirun, srun or torchrun, or a single process");
    v("world_size", world_size, between(1, 1024),
      "number of processes, null = from mpirun, srun or torchrun");
    v("rendezvous", rendezvous,
      "meeting point of the processes: host:port of rank 0, or a file that all can access. Empty = "
      "from the launcher");
    v("timeout", timeout, between(1, 86'400).unit("s"),
      "longest wait for a rank that does not start or respond");
  }
};

struct ServingRun : RankedRun {
  AdapterUse adapters = AdapterUse::automatic;

  template <class V>
  void fields(V& v) {
    RankedRun::fields(v);
    v("adapters", adapters,
      "application of named adapters: mix (per sequence, next to the weights) or switch (merged "
      "one at a time, prompts grouped by adapter). auto = mix, or switch for DoRA. An adapter that "
      "all prompts name is merged at load time");
  }
};

/// Where settings of Sampling that are not set come from.
enum class SamplingFrom : uint8_t { recipe, model };
constexpr std::array<std::string_view, 2> enum_names(SamplingFrom) { return {"recipe", "model"}; }

struct Sampling {
  SamplingFrom from = SamplingFrom::recipe;
  std::optional<double> temperature;
  std::optional<int> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  int max_tokens = 256;
  std::vector<std::string> stop;
  std::vector<int> stop_ids;

  template <class V>
  void fields(V& v) {
    v("from", from,
      "source of the next five settings where they are null: recipe (greedy, all filters off) or "
      "model (generation_config.json of the model)");
    v("temperature", temperature, at_least(0), "softmax temperature, 0 = greedy");
    v("top_k", top_k, at_least(0), "number of most likely tokens to sample from, 0 = all");
    v("top_p", top_p, above(0).up_to(1),
      "total probability of the smallest set of tokens to sample from, 1 = all");
    v("min_p", min_p, between(0, 1),
      "smallest probability of a sampled token, as a share of the largest, 0 = off");
    v("repetition_penalty", repetition_penalty, between(0.01, 100),
      "divisor of positive logits and factor of negative logits of earlier tokens, 1 = off");
    v("max_tokens", max_tokens, at_least(0).unit("tokens"),
      "maximum number of new tokens per sequence");
    v("stop", stop,
      "texts that end a sequence and are not shown. Special tokens are matched by their text");
    v("stop_ids", stop_ids, at_least(0),
      "token ids that end a sequence and are not shown, in addition to the model's");
  }
  void check(Problems& p) const;
  /// True if any key says how tokens are drawn.
  bool is_set() const { return temperature || top_k || top_p || min_p || repetition_penalty; }
};

/// Chats, which the model's chat template writes.
struct Chat {
  std::filesystem::path template_path, tools, documents;
  std::optional<bool> thinking;
  std::optional<std::string> date;
  Variables variables;

  template <class V>
  void fields(V& v) {
    v("template", template_path,
      "Jinja file or name of one of the model's chat templates, empty = the default template");
    v("thinking", thinking, "reasoning before the answer, null = default of the chat template");
    v("tools", tools, optional_input(),
      "JSON array of tools, for chats that list none, empty = none");
    v("documents", documents, optional_input(),
      "JSON array of documents to answer from, for chats that list none, empty = none");
    v("date", date,
      "current date for the chat template, YYYY-MM-DD. null = today for --chat without a recipe, "
      "else 2024-07-26");
    v("variables", variables, "further variables of the chat template: {name: value}");
  }
  void check(Problems& p) const;
};

struct Output {
  std::filesystem::path path;
  std::filesystem::path state;
  int top_logprobs = 0;

  template <class V>
  void fields(V& v) {
    v("path", path, "result file, empty or - = standard output");
    v("state", state, "file to save the prefill state in, empty = none");
    v("top_logprobs", top_logprobs, between(0, 100), "number of alternatives in each token event");
  }
};

/// Input text of evaluation and training tools.
struct Data {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path, optional_input(),
      "text file or JSON array of token ids, empty = built-in text");
  }
};

// Listed in sections.cpp.
extern template Field fields_of(Model&);
extern template Field fields_of(Run&);
extern template Field fields_of(Sampling&);
extern template Field fields_of(Cache&);
extern template Field fields_of(Output&);
extern template Field fields_of(Data&);

/// Reports states that a tool can neither continue nor save.
void refuse_states(const Model& model, const std::filesystem::path& output, Problems& p);

}  // namespace tandem::recipe
