#include "model/weights/quantized_source.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "base/parallel.h"
#include "ops/quantizing.h"

namespace tandem::model {
namespace {

/// Rows are quantized in pieces of this size in f32, which stay in L2.
constexpr int64_t kQuantizedAtOnce = int64_t{1} << 16;

/// True if none of the numbers is NaN or infinite. Bits are read as integers, so that the loop
/// becomes vectors.
bool all_finite(std::span<const float> numbers) {
  constexpr int32_t kMagnitude = std::numeric_limits<int32_t>::max(), kInfinity = 0x7f800000;
  int32_t most = 0;
  for (const float& number : numbers) {
    int32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    most = (bits & kMagnitude) > most ? bits & kMagnitude : most;
  }
  return most < kInfinity;
}

class QuantizedSource final : public WeightSource {
 public:
  QuantizedSource(const ModelConfig& config, std::unique_ptr<WeightSource> base,
                  const QuantizedFormats& format_of, bool search)
      : QuantizedSource(config, *base, format_of, search) {
    owned_ = std::move(base);
    if (const WeightSource& before = source_->base(); &before != source_)
      base_.reset(new QuantizedSource(config, before, format_of, search));
  }

  WeightFormat native(MatrixId id) const override {
    const auto at = matrices_.find(stored_id(id));
    return at == matrices_.end() ? source_->native(id) : at->second.format;
  }

  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    const auto at = matrices_.find(stored_id(id));
    if (at == matrices_.end()) return source_->rows(id, begin, end, to, out);
    const StoredWeights codes = codes_of(at->first, at->second);
    const auto least = static_cast<int>(codes.at_once);
    parallel_ranges(static_cast<int>(end - begin), least, [&](int i, int j) {
      codes.read(begin + i, begin + j, to,
                 static_cast<std::byte*>(out) + matrix_bytes(to, i, codes.in));
    });
  }

  bool rows_on_device(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream stream) const override {
    return !matrices_.contains(stored_id(id)) &&
           source_->rows_on_device(id, begin, end, to, device, stream);
  }

  Unquantized unquantized(MatrixId id) const override {
    if (!matrices_.contains(stored_id(id))) return {};
    return {source_, search_};
  }

  std::vector<float> vector(MatrixId id) const override { return source_->vector(id); }

  void embed(std::span<const int32_t> ids, float* out) const override {
    const auto at = matrices_.find({Role::embedding});
    if (at == matrices_.end()) return source_->embed(ids, out);
    const StoredWeights codes = codes_of(at->first, at->second);
    parallel_ranges(static_cast<int>(ids.size()), 1, [&](int from, int to) {
      for (int i = from; i < to; ++i) {
        const int64_t id = ids[static_cast<size_t>(i)];
        codes.read(id, id + 1, DType::f32, out + i * codes.in);
      }
    });
  }

  const WeightSource& base() const override { return base_ ? *base_ : *this; }

 private:
  /// A matrix that is quantized.
  struct Matrix {
    WeightFormat format;
    int64_t in = 0;
  };

  QuantizedSource(const ModelConfig& config, const WeightSource& source,
                  const QuantizedFormats& format_of, bool search)
      : tied_(config.head.tied), search_(search), source_(&source) {
    for (const MatrixId id : all_matrices(config)) {
      const io::Shape shape = shape_of(id.role, config);
      if (shape.size() < 2 || stored_id(id) != id || is_coded(source.native(id))) continue;
      const std::optional<WeightFormat> format = format_of(id);
      if (!format || !is_coded(*format)) continue;
      TANDEM_CHECK(ops::is_quantized_to(*format), "{} is not a format for quantized weights",
                   format_name(*format));
      matrices_.emplace(id, Matrix{*format, shape.back()});
    }
  }

  MatrixId stored_id(MatrixId id) const {
    return tied_ && id.role == Role::head ? MatrixId{Role::embedding} : id;
  }

  StoredWeights codes_of(MatrixId id, const Matrix& m) const {
    return {.name = canonical_name(id),
            .format = m.format,
            .in = m.in,
            .at_once = std::max<int64_t>(1, kQuantizedAtOnce / m.in),
            .fetch = [this, id, m](int64_t begin, int64_t end, void* out) {
              quantize_rows(id, m, begin, end, out);
            }};
  }

  void quantize_rows(MatrixId id, const Matrix& m, int64_t begin, int64_t end, void* out) const {
    std::vector<float> numbers(static_cast<size_t>((end - begin) * m.in));
    source_->rows(id, begin, end, DType::f32, numbers.data());
    if (!all_finite(numbers))
      throw input_error(canonical_name(id),
                        "holds a weight that is NaN or infinite, which {} cannot hold",
                        format_name(m.format));
    ops::quantize(out, m.format, numbers.data(), end - begin, m.in, search_);
  }

  bool tied_, search_;
  std::unique_ptr<WeightSource> owned_;  // null of a base, which its source owns
  const WeightSource* source_;
  std::unique_ptr<QuantizedSource> base_;  // only if adapters are merged into the source
  std::map<MatrixId, Matrix> matrices_;
};

}  // namespace

std::unique_ptr<WeightSource> quantized_source(const ModelConfig& config,
                                               std::unique_ptr<WeightSource> base,
                                               const QuantizedFormats& format_of, bool search) {
  return std::make_unique<QuantizedSource>(config, std::move(base), format_of, search);
}

}  // namespace tandem::model
