#pragma once
#include "model/weights/weight_source.h"

namespace tandem::test {

/// A double of weights in groups of 64 codes. Each byte follows from its matrix, row and place.
class GroupSource final : public model::WeightSource {
 public:
  inline static const WeightFormat kFormat{Code::i4, 64, ScaleType::f16, Zero::integer};

  explicit GroupSource(const model::ModelConfig& config) : config_(config) {}

  static std::byte stored(model::MatrixId id, int64_t row, size_t at) {
    return static_cast<std::byte>((static_cast<int>(id.role) * 59 + id.layer * 31 + row * 7) ^ at);
  }
  WeightFormat native(model::MatrixId /*id*/) const override { return kFormat; }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to,
            void* out) const override {
    const int64_t in = model::shape_of(id.role, config_)[1];
    const auto fetch = [&](int64_t first, int64_t last, void* at) {
      auto* byte = static_cast<std::byte*>(at);
      for (int64_t row = first; row < last; ++row)
        for (size_t i = 0; i < row_bytes(kFormat, in); ++i) *byte++ = stored(id, row, i);
    };
    model::StoredWeights{.name = canonical_name(id), .format = kFormat, .in = in, .fetch = fetch}
        .read(begin, end, to, out);
  }
  std::vector<float> vector(model::MatrixId id) const override {
    return std::vector<float>(static_cast<size_t>(model::shape_of(id.role, config_)[0]));
  }
  void embed(std::span<const int32_t> /*ids*/, float* /*out*/) const override {}

 private:
  model::ModelConfig config_;
};

/// Rows of a matrix as its source stores them.
inline std::vector<std::byte> native_rows(const model::WeightSource& source, model::MatrixId id,
                                          int64_t rows, int64_t in) {
  const WeightFormat format = source.native(id);
  std::vector<std::byte> bytes(matrix_bytes(format, rows, in));
  source.rows(id, 0, rows, format, bytes.data());
  return bytes;
}

}  // namespace tandem::test
