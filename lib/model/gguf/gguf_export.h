#pragma once
#include <string>
#include <vector>

#include "base/weight_format.h"
#include "io/gguf_write.h"
#include "model/spec/config.h"
#include "model/weights/weight_source.h"

namespace tandem::model {

/// Describes a model as a GGUF file and gives the bytes of its tensors. Only Llama, Mistral, Qwen2
/// and Qwen3 are supported.
class GgufExport {
 public:
  /// source    outlives the result. Codes of 4 bits become Q4_0 and those of 8 bits Q8_0: both in
  ///           groups of 32 without zeros. Matrices in numbers become BF16 or F32
  /// format_of format of each matrix: numbers, or what the source has as native
  /// errors    kind input at `where`: another architecture, or RoPE or windows that GGUF files of
  ///           it do not have (named)
  GgufExport(const ModelConfig& config, const WeightSource& source,
             const std::function<WeightFormat(MatrixId)>& format_of, const std::string& where);

  /// Adds the metadata and describes the tensors.
  void describe(io::GgufWriter& to) const;
  /// Hands over the bytes of tensor i, in the order of describe().
  void write(size_t i, const io::ByteSink& sink) const;

 private:
  struct Tensor {
    std::string name;
    io::GgufType type;
    io::Shape shape;
    MatrixId id;
    WeightFormat format;         // in which rows are read
    int in_pairs = 0;            // rows of a head whose pairs become neighbours; 0: none
    std::vector<float> numbers;  // a table, which no source has
  };

  void add(MatrixId id, const WeightFormat& format);
  void add_keys(io::GgufWriter& to) const;

  ModelConfig config_;
  const WeightSource& source_;
  std::string arch_;
  bool pairs_ = false;
  std::vector<Tensor> tensors_;
};

}  // namespace tandem::model
