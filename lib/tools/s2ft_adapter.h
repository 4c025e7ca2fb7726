#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adapters/adapter_recipe.h"
#include "adapters/model_form.h"
#include "adapters/opened.h"
#include "cli/context.h"

namespace tandem::tools {

/// A run of s2ft-adapter: says what adapters are, checks them, adds them up, takes one out of a
/// tuned model, and writes the result as slices, as factors of PEFT or merged into the base.
class S2ftAdapter {
 public:
  using Recipe = adapters::AdapterRecipe;

  /// errors   kind input: no such model; as model::open_adapter; kind usage: the output is within
  ///          an input
  S2ftAdapter(cli::Context& cx, const cli::Point<Recipe>& point);

  int print_plan();
  /// errors   kind numeric: the result is not as it should be, or too much is lost; kind
  ///          input: as model::extract_slices, adapters overlap that must not; kind usage: the
  ///          folder is there; kind interrupted
  int run();

 private:
  bool writes_folder() const { return recipe_.adapter.to != adapters::AdapterForm::summary; }
  bool writes_gguf() const {
    return recipe_.adapter.to == adapters::AdapterForm::model && recipe_.output.gguf();
  }
  bool fits_base(const model::WeightedAdapter& given) const;
  std::string model_line() const;
  /// Into a folder that appears when it is complete, and verified if that is asked for.
  int write_folder();
  int write_summary();
  /// Prints the share of the change that each rank loses.
  int write_ranks();
  /// errors   kind input: the base is a GGUF file
  void require_folder() const;
  int write_gguf_file();
  nlohmann::ordered_json model_json() const;
  /// Prints the text, or a JSON record.
  /// what     key of the output's path
  void say_written(const std::string& what, const std::string& text,
                   const nlohmann::ordered_json& more);
  /// The merged model, into an empty folder.
  std::string write_model(const std::filesystem::path& folder);
  /// The lines that say what has been checked.
  /// merged   the weights that must be those of base and adapters
  std::string verify(const model::WeightSource& merged) const;
  std::string verify_codes(const std::filesystem::path& path,
                           const model::WeightSource& source) const;

  cli::Context& cx_;
  const adapters::AdapterRecipe& recipe_;
  adapters::OpenedAdapters opened_;
  adapters::ModelFormats formats_;  // in which merged matrices are written
  DType dtype_;                     // number type of merged matrices
  std::string checks_ = {};         // lines on the tuned model
};

}  // namespace tandem::tools
