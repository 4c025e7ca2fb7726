#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "adapters/opened.h"
#include "model/adapters/each_piece.h"

namespace tandem::adapters {

/// Formats of the matrices of a model that is written.
class ModelFormats {
 public:
  /// errors   kind recipe: a group that does not divide the inputs of a matrix, codes for a head
  ///          that a folder ties to the embedding
  ModelFormats(const decode::ModelFiles& base, const AdapterOutput& output);

  WeightFormat of(model::MatrixId id) const { return formats_.at(id); }
  /// Some matrices are codes.
  bool coded() const;
  /// Numbers of matrices that are not codes; those of the layers unless `weights` says codes.
  DType numbers() const { return numbers_; }
  /// "int4 in groups of 64, head int8, embedding bf16", or "bf16".
  std::string text() const;
  /// Bytes of all weights.
  size_t bytes() const;

 private:
  std::map<model::MatrixId, WeightFormat> formats_;  // by matrix
  model::ModelConfig config_;
  DType numbers_;
};

/// The base's weights with those of the adapters, in these formats.
std::unique_ptr<model::WeightSource> source_in(const ModelFormats& formats,
                                               const OpenedAdapters& opened, bool scale_search);

/// Writes a GGUF file.
/// source   as source_in gives it
/// errors   kind input: an architecture or a tokenizer that is not supported, cannot write, the
///          name is taken; kind interrupted
void write_gguf(const std::filesystem::path& path, const OpenedAdapters& opened,
                const ModelFormats& formats, const model::WeightSource& source,
                io::Existing existing, const std::function<bool(double share)>& progress);

/// Reads a GGUF file, or a folder with codes, back and compares its weights, and its end-of-text
/// ids, with the source's.
/// result   weights that are equal
/// errors   kind numeric: the first matrix that differs; kind input; kind interrupted
int64_t verify_written(const std::filesystem::path& path, const OpenedAdapters& opened,
                       const ModelFormats& formats, const model::WeightSource& source,
                       const model::WeightProgress& progress);

}  // namespace tandem::adapters
