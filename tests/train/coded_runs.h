#pragma once
#include <memory>
#include <optional>

#include "model/spec/weight_formats.h"
#include "model/weights/quantized_source.h"
#include "train/low_rank_runs.h"

/// Runs of small models over codes, or over the numbers that they stand for.
namespace tandem::test {

/// Heads tied or not, biases, norms of heads.
inline constexpr const char* kCodedModels[] = {"llama-3.1", "qwen2-untied-sharded", "qwen3-tied"};

/// A format of each kind; v stays numbers, which lie beside the codes of q and k.
inline std::optional<WeightFormat> coded_format(model::MatrixId id) {
  using enum model::Role;
  switch (id.role) {
    case q:
    case gate:
    case up:
      return WeightFormat(Code::i4, 32, ScaleType::f16, Zero::integer);
    case k:
      return WeightFormat(Code::i8, 16, ScaleType::f16, Zero::none);
    case o:
      return WeightFormat(Code::fp8, 0, ScaleType::f32, Zero::none);
    case down:
    case head:
    case embedding:
      return WeightFormat(Code::i8, 0, ScaleType::f16, Zero::none);
    default:
      return std::nullopt;
  }
}

inline std::unique_ptr<model::WeightSource> coded_source(const char* model,
                                                         const model::ModelConfig& c) {
  return model::quantized_source(c, decode::open_model(small_model(model).string(), 0).source,
                                 coded_format);
}

/// Keeps codes of the source in memory.
inline train::TrainerSpec with_codes(train::TrainerSpec spec, const model::WeightSource& source) {
  auto formats = std::make_shared<model::WeightFormats>();
  formats->int8_inputs = false;
  for (const model::MatrixId& id : model::all_matrices(spec.config))
    if (model::is_matrix(id.role) && is_coded(source.native(id)))
      formats->coded.emplace(id, source.native(id));
  spec.config.formats = std::move(formats);
  return spec;
}

}  // namespace tandem::test
