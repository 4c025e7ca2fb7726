#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "recipe/sections.h"

namespace tandem::tools {

/// Forms that adapters are brought into; peft is another name of lora.
enum class AdapterForm : uint8_t { summary, s2ft, lora, model, peft };
constexpr std::array<std::string_view, 5> enum_names(AdapterForm) {
  return {"summary", "s2ft", "lora", "model", "peft"};
}

/// Number type of a merged model's matrices.
enum class MatrixType : uint8_t { automatic, bf16, f32 };
constexpr std::array<std::string_view, 3> enum_names(MatrixType) { return {"auto", "bf16", "f32"}; }

/// Section `model` of s2ft-adapter.
struct BaseModel : recipe::Model {
  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "the model that the adapters were trained on: a folder, name of a known model, or "
      "synthetic:NAME");
  }
};

/// Section `run` of s2ft-adapter.
struct AdapterRun : recipe::Run {
  template <class V>
  void fields(V& v) {
    v("threads", threads, recipe::between(0, 1024),
      "CPU threads; 0 = physical cores that the process may use");
    v("seed", seed, recipe::at_least(0), "of a synthetic model's weights");
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
      "folder of a run of s2ft-train, or of its adapter; a LoRA or DoRA folder of PEFT");
    v("weight", weight,
      recipe::between(-recipe::Adapter::kMostWeight, recipe::Adapter::kMostWeight),
      "how much of its change is added; 1 = all of it");
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
      "added up in this order, each times its weight: {path: run, weight: 0.5}, or run=0.5");
    v("tuned", tuned, recipe::optional_input(),
      "in place of adapters: a tuned model, whose rows and columns that differ from the base are "
      "the adapter");
    v("to", to,
      "summary = say what they are; s2ft = one adapter of slices; lora, peft = a folder of PEFT; "
      "model = the base with them in its weights");
    v("rank", rank, recipe::between(0, 65536),
      "to lora: the most that a matrix's factors have; 0 = as many as are exact");
    v("ranks", ranks, recipe::between(1, 65536),
      "list of ranks: print the share of the change that the factors of each would lose");
    v("max_error", max_error, recipe::between(0, 1),
      "to lora: refuse a rank that loses more of the change, as a share of its Frobenius norm");
    v("exclusive", exclusive, "refuse adapters that change the same head or channel");
    v("verify", verify, "read the result back, and compare it weight by weight");
    v("force", force, "take adapters of another model, if their shapes fit");
  }
};

/// Section `output` of s2ft-adapter.
struct AdapterOutput {
  std::filesystem::path path;
  MatrixType dtype = MatrixType::automatic;

  template <class V>
  void fields(V& v) {
    v("path", path, "the summary's file, - or empty = stdout; with adapter.to, the new folder");
    v("dtype", dtype, "of a model's matrices; auto = bf16 if the base's are, else f32");
  }
};

struct AdapterRecipe {
  BaseModel model;
  AdapterRun run;
  AdapterSettings adapter;
  AdapterOutput output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the base model");
    v("run", run, "threads, seed");
    v("adapter", adapter, "the adapters, and what to do with them");
    v("output", output, "the summary, the adapter or the model");
  }
  void check(recipe::Problems& p) const;
};

}  // namespace tandem::tools
