#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "recipe/sections.h"

namespace tandem::adapters {

/// Forms that adapters are brought into; peft is another name of lora.
enum class AdapterForm : uint8_t { summary, s2ft, lora, model, peft };
constexpr std::array<std::string_view, 5> enum_names(AdapterForm) {
  return {"summary", "s2ft", "lora", "model", "peft"};
}

/// Section `model` of s2ft-adapter.
struct BaseModel : recipe::Model {
  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "base model of the adapters: folder, name of a known model, or synthetic:NAME (random "
      "weights)");
  }
};

/// Section `run` of s2ft-adapter.
struct AdapterRun : recipe::Run {
  template <class V>
  void fields(V& v) {
    v("threads", threads, recipe::between(0, 1024),
      "number of CPU threads, 0 = physical cores available to the process");
    v("seed", seed, recipe::at_least(0), "seed of a synthetic model's weights");
  }
};

/// An item of adapter.adapters: a map, or `FOLDER[=WEIGHT]`.
struct GivenAdapter {
  static constexpr std::string_view kItems = "adapters", kExample = "{path: run/adapter}";
  std::filesystem::path path;
  double weight = 1;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "run folder of s2ft-train, its adapter/ folder, or a LoRA or DoRA folder of PEFT");
    v("weight", weight,
      recipe::between(-recipe::Adapter::kMostWeight, recipe::Adapter::kMostWeight),
      "scale of the adapter's change, 1 = unscaled");
  }
};

/// A map, or text whose end after the last '=' is the weight, if that is a number.
std::string read_item(const recipe::Node& node, const recipe::Folders& models, GivenAdapter& out);

/// Section `adapter`.
struct AdapterSettings {
  std::vector<GivenAdapter> adapters;
  recipe::ModelName tuned;
  AdapterForm to = AdapterForm::summary;
  int rank = 0;
  std::vector<int> ranks;
  double max_error = 1;
  bool exclusive = false, verify = false, force = false;

  bool to_lora() const { return to == AdapterForm::lora || to == AdapterForm::peft; }

  template <class V>
  void fields(V& v) {
    v("adapters", adapters,
      "adapters to add up in this order, each times its weight: {path: run, weight: 0.5}, or "
      "run=0.5");
    v("tuned", tuned, recipe::optional_input(),
      "tuned model in place of adapters. Its rows and columns that differ from the base become the "
      "adapter");
    v("to", to,
      "form of the result: summary (description only), s2ft (one adapter of slices), lora or peft "
      "(a PEFT folder), or model (base with merged adapters)");
    v("rank", rank, recipe::between(0, 65536),
      "largest rank of a matrix's factors, 0 = the exact rank. Only with to: lora");
    v("ranks", ranks, recipe::between(1, 65536),
      "ranks for a table of the share of the change that factors of each rank would lose");
    v("max_error", max_error, recipe::between(0, 1),
      "largest accepted loss of the change, as a share of its Frobenius norm. Only with to: lora");
    v("exclusive", exclusive, "refusal of adapters that change the same head or channel");
    v("verify", verify, "comparison of the written result with the computed one, weight by weight");
    v("force", force, "use of adapters that were trained on another model, if their shapes fit");
  }
};

/// Section `output` of s2ft-adapter.
struct AdapterOutput {
  std::filesystem::path path;
  recipe::WeightType weights = recipe::WeightType::automatic;
  int group = 0;
  recipe::WeightType head = recipe::WeightType::automatic,
                     embedding = recipe::WeightType::automatic;
  bool scale_search = true;

  /// True if a merged model becomes a GGUF file, not a folder.
  bool gguf() const { return path.extension() == ".gguf"; }

  template <class V>
  void fields(V& v) {
    v("path", path,
      "file of the summary, empty or - = standard output. With adapter.to, the new folder; a "
      "merged model becomes a GGUF file if the name ends in .gguf");
    v("weights", weights,
      "weights of a merged model: bf16, f32, int8, int4 or fp8. Folders get the last three as "
      "compressed-tensors, GGUF files int8 as Q8_0 and int4 as Q4_0. auto = bf16 if the base is in "
      "bf16, else f32");
    v("group", group, recipe::between(0, 128).unit("weights"),
      "weights that share a scale: 32, 64 or 128, only with weights: int8 or int4. 0 = 64, in GGUF "
      "files 32");
    v("head", head,
      "type of the head and of a tied embedding. auto = int8 with quantized weights, fp8 with "
      "fp8, bf16 for a tied head in a folder");
    v("embedding", embedding,
      "type of an embedding that is not tied: bf16 or f32 in folders, where compressed-tensors "
      "quantizes only linear layers. auto = int8 or bf16");
    v("scale_search", scale_search,
      "choice of each scale by the least square error, only with weights: int8 or int4");
  }
  void check(recipe::Problems& p) const;
  bool operator==(const AdapterOutput&) const = default;
};

struct AdapterRecipe {
  BaseModel model;
  AdapterRun run;
  AdapterSettings adapter;
  AdapterOutput output;

  template <class V>
  void fields(V& v) {
    v("model", model, "base model");
    v("run", run, "threads, seed");
    v("adapter", adapter, "adapters and their conversion");
    v("output", output, "place of the summary, adapter or model");
  }
  void check(recipe::Problems& p) const;
};

}  // namespace tandem::adapters
