#pragma once
#include <array>
#include <filesystem>

#include "cli/context.h"
#include "decode/model_files.h"
#include "model/adapters/adapter.h"
#include "recipe/sections.h"

namespace tandem::tools {

enum class AdapterForm : uint8_t { summary, model };
constexpr std::array<std::string_view, 2> enum_names(AdapterForm) { return {"summary", "model"}; }

/// Number type of a merged model's matrices.
enum class MatrixType : uint8_t { automatic, bf16, f32 };
constexpr std::array<std::string_view, 3> enum_names(MatrixType) { return {"auto", "bf16", "f32"}; }

/// Section `model` of s2ft-adapter.
struct BaseModel : recipe::Model {
  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(),
      "the model that the adapter was trained on: a folder, name of a known model, or "
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

/// Section `adapter`.
struct AdapterSettings {
  std::filesystem::path path;
  AdapterForm to = AdapterForm::summary;
  bool verify = false, force = false;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::required_input(), "folder of a run of s2ft-train, or of its adapter");
    v("to", to, "summary = say what it is; model = write the model that it makes of its base");
    v("verify", verify,
      "compare the model that it makes with its base and its values, weight by weight");
    v("force", force, "take it where the run trained another model, if its shapes fit");
  }
};

/// Section `output` of s2ft-adapter.
struct AdapterOutput {
  std::filesystem::path path;
  MatrixType dtype = MatrixType::automatic;

  template <class V>
  void fields(V& v) {
    v("path", path, "the summary's file, - or empty = stdout; the model's folder, a new one");
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
    v("adapter", adapter, "the adapter, and what to do with it");
    v("output", output, "the summary or the model");
  }
  void check(recipe::Problems& p) const;
};

/// A run of s2ft-adapter: says what an adapter is, checks it, or merges it into its base.
class S2ftAdapter {
 public:
  using Recipe = AdapterRecipe;

  /// errors   kind input: no such model; as model::Adapter::open
  S2ftAdapter(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  /// errors   kind numeric: the merged model is not what it should be; kind usage: its folder is
  ///          there; kind interrupted
  int run();

 private:
  /// Whether the adapter is of this model; else it was forced.
  bool fits_base() const;
  bool writes_model() const { return recipe_.adapter.to == AdapterForm::model; }
  std::string model_line() const;
  /// Into a folder that appears when it is complete, and verified if that is asked for.
  int write_model();
  int write_summary();
  /// The lines that say what has been checked.
  /// merged   the weights that must be those of base and adapter
  std::string verify(const model::WeightSource& merged) const;
  /// The base's weights with those of the adapter.
  std::unique_ptr<model::WeightSource> merged() const;

  cli::Context& cx_;
  const AdapterRecipe& recipe_;
  std::filesystem::path folder_;
  decode::ModelFiles files_;
  model::Adapter adapter_;
  DType dtype_;  // of merged matrices
};

}  // namespace tandem::tools
