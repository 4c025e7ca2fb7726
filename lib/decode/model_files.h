#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/adapters/fused_source.h"
#include "model/spec/config.h"
#include "model/weights/shard.h"
#include "model/weights/weights.h"
#include "recipe/sections.h"
#include "text/tokenizer.h"

namespace tandem::decode {

/// A model before anything large is read: shape, tokenizer, and where weights come from.
struct ModelFiles {
  std::string name;              // name of the folder or file, or "synthetic:..."
  std::filesystem::path folder;  // or GGUF file; empty for synthetic models
  bool gguf = false;
  model::ModelConfig config;
  // Null for synthetic models and folders that hold none: ids in, ids out.
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<model::WeightSource> source;
  /// Covers all that changes a logit: settings, weights (headers and samples), merged adapters.
  /// States and other files are tied to it. It equals the fingerprint of version 037eef9 unless a
  /// setting is used that 037eef9 left out.
  std::string fingerprint;
  std::string unquantized = {};  // fingerprint of the weights that model.weights quantizes
  std::vector<model::NamedAdapter> adapters = {};  // that stay apart from the weights
  std::vector<std::string> merged = {};            // into the weights, for people: `run/a=0.5`
  model::Shard shard = {};        // what of it `config` and `source` are; the rest is of all
  model::ModelConfig whole = {};  // of all ranks, where there are several
  std::vector<std::string> warnings = {}, notes = {};  // of reading the files, for people

  bool synthetic() const { return folder.empty(); }
  /// Fingerprint in adapters.
  const std::string& adapter_base() const {
    return unquantized.empty() ? fingerprint : unquantized;
  }
  const model::ModelConfig& whole_config() const { return shard.whole() ? config : whole; }
};

/// Opens a model folder, a GGUF file, or "synthetic:NAME" with NAME a built-in shape or the path of
/// a config.json. Weights are checked against the configuration by their headers only.
/// errors   kind input: anything missing, malformed or unsupported
ModelFiles open_model(const std::string& path, uint64_t seed);

/// The same of section `model` of a recipe: adapters without a name are merged into the weights
/// (model::fused_source), the others stay apart.
/// errors   kind input: of an adapter too, as model::open_adapter
ModelFiles open_model(const recipe::Model& model, uint64_t seed);

/// The format of quantised weights; groups of int8 and int4 have that many inputs.
WeightFormat quantized_format(recipe::WeightType type, int group);

/// The formats of matrices that their source stores as codes, and products on the device take with
/// inputs of type `compute`; null if there are none.
std::shared_ptr<model::WeightFormats> codes_of(const ModelFiles& files, Device device,
                                               DType compute);
/// Keeps these weights as codes in memory, and notes so. Other codes become numbers.
/// int8_inputs  as PackedWeights::Spec's, if any codes are integers
/// fp8_inputs   as PackedWeights::Spec's, if any codes are fp8
void keep_codes(ModelFiles& files, Device device, DType compute, bool int8_inputs,
                bool fp8_inputs = false);
/// Notes that such weights become numbers.
/// why      ends the note: "on a GPU"
void note_widened(ModelFiles& files, DType numbers, const std::string& why);

/// Opens an adapter of the base, whose warnings it adds to. Saved weights that equal the base's are
/// left out.
/// errors   kind input, as model::open_adapter
model::AnyAdapter open_adapter(const std::filesystem::path& path, bool force, ModelFiles& base);

/// True if adapters give a tied model an embedding and a head that differ.
bool unties(std::span<const model::WeightedAdapter> adapters);
/// Gives a model that ties its head to the embedding a separate head with the same values.
void untie(ModelFiles& base);

/// Leaves what a rank holds of the model.
/// errors   kind recipe, as model::shard_of and model::shard_adapter
void take_shard(ModelFiles& files, int rank, int n_ranks);
/// The same of a draft, which any number of ranks can share (model::draft_shard_of).
void take_draft_shard(ModelFiles& files, int rank, int n_ranks);

/// Merges a named adapter into the weights; the others are gone.
void merge_named(ModelFiles& files, size_t adapter);

/// The configuration of the same models, of which nothing else need be there.
model::ModelConfig open_config(const std::string& path);

}  // namespace tandem::decode
