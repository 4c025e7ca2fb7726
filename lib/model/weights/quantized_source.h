#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "base/weight_format.h"
#include "model/spec/config.h"
#include "model/weights/weight_source.h"

namespace tandem::model {

/// The format that a matrix is quantized to; nothing: it stays as it is stored.
using QuantizedFormats = std::function<std::optional<WeightFormat>(MatrixId)>;

/// Quantizes the matrices of another source when they are read. The new native format of each is
/// i4 or i8 codes with f16 scales, or fp8 codes with f32 scales. Its numbers and embedding rows are
/// those of the codes. A tied head has the format of the embedding. Matrices that `base` holds in
/// codes keep them, and vectors stay as they are. A GPU can quantize the matrices itself
/// (WeightSource::unquantized).
/// search   chooses scales by the least squared error
/// cost     each read of rows quantizes them: about 2 to 4 ns a weight and core with AVX-512
/// errors   kind input when rows are read: a weight that is NaN or infinite, with the matrix's name
std::unique_ptr<WeightSource> quantized_source(const ModelConfig& config,
                                               std::unique_ptr<WeightSource> base,
                                               const QuantizedFormats& format_of,
                                               bool search = true);

}  // namespace tandem::model
