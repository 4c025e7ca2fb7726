#include "model/weights/weight_source.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "base/convert.h"
#include "base/error.h"
#include "base/parallel.h"
#include "model/families/family.h"
#include "model/weights/coded_tensors.h"
#include "ops/loading.h"
#include "ops/quantizing.h"

namespace tandem::model {
namespace {

/// Weights that have to be converted are read in pieces of this size. They are small compared with
/// any plan, and still in L2 when they are converted.
constexpr size_t kReadBytes = size_t{64} << 10;
/// A thread reads no less at a time: a system call costs little compared with it.
constexpr size_t kLeastRead = size_t{256} << 10;

/// The type of numbers that a converter makes for a format.
/// errors   kind input: there is no converter
DType converted_type(const std::string& name, const WeightFormat& from, const WeightFormat& to) {
  const bool is_read = is_coded(from) || from == widens_to(from);
  if (is_read && (to == DType::f32 || to == DType::bf16)) return numbers_of(to);
  throw input_error(name, "is stored as {}, which cannot be converted to {}", format_name(from),
                    format_name(to))
      .hint(kOriginalWeights);
}

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(const ModelConfig& config, Checkpoint checkpoint)
      : config_(config), checkpoint_(std::move(checkpoint)) {
    check_checkpoint(config_, checkpoint_);
    coded_.emplace(config_, checkpoint_);
    if (coded({Role::embedding}) == nullptr)
      embedding_ = checkpoint_.weight({Role::embedding}, config_);
  }

  std::vector<std::string> notes() const { return coded_->notes(); }

  WeightFormat native(MatrixId id) const override {
    const CodedTensor* const codes = coded(id);
    return codes != nullptr ? codes->format : checkpoint_.weight(id, config_).dtype;
  }

  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    if (const CodedTensor* const codes = coded(id)) {
      if (to != codes->format) converted_type(codes->module, codes->format, to);
      const int64_t first = checkpoint_.part(id, config_).first;
      return coded_->rows(*codes, first + begin, first + end, to, out);
    }
    const io::TensorView t = checkpoint_.weight(id, config_);
    const StoredWeights stored = stored_in(checkpoint_, t);
    const int64_t cols = t.shape.back(), first = begin * cols, n = (end - begin) * cols;
    const auto piece = static_cast<int64_t>(kLeastRead / dtype_bytes(t.dtype));
    parallel_ranges(static_cast<int>((n + piece - 1) / piece), 1, [&](int i, int j) {
      const int64_t lo = i * piece, hi = std::min(n, j * piece);
      stored.read(first + lo, first + hi, to, static_cast<std::byte*>(out) + row_bytes(to, lo));
    });
  }

  std::vector<float> vector(MatrixId id) const override {
    const io::TensorView t = checkpoint_.weight(id, config_);
    return stored_in(checkpoint_, t).values(0, t.shape.front());
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    constexpr int kRows = 16;  // a thread reads no less
    const int64_t dim = config_.dim;
    if (const CodedTensor* const codes = coded({Role::embedding})) {
      for (size_t i = 0; i < ids.size(); ++i)
        coded_->rows(*codes, ids[i], int64_t{ids[i]} + 1, DType::f32,
                     out + static_cast<int64_t>(i) * dim);
      return;
    }
    const StoredWeights stored = stored_in(checkpoint_, embedding_);
    parallel_ranges(static_cast<int>(ids.size()), kRows, [&](int from, int to) {
      for (int i = from; i < to; ++i) {
        const int64_t id = ids[static_cast<size_t>(i)];
        stored.read(id * dim, (id + 1) * dim, DType::f32, out + i * dim);
      }
    });
  }

 private:
  /// The codes of a matrix; null: it is plain numbers.
  const CodedTensor* coded(MatrixId id) const {
    return coded_->find(checkpoint_.part(id, config_).tensor);
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
  std::optional<CodedTensors> coded_;
  io::TensorView embedding_;  // unless it is quantized
};

class SyntheticSource final : public WeightSource {
 public:
  SyntheticSource(const ModelConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

  WeightFormat native(MatrixId /*id*/) const override { return DType::f32; }

  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    rows_on_device(id, begin, end, to, out, {});
  }

  bool rows_on_device(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* device,
                      Stream stream) const override {
    const DType numbers = converted_type(canonical_name(id), native(id), to);
    ops::fill_random(device, numbers, part(id, begin, end), stream);
    return true;
  }

  std::vector<float> vector(MatrixId id) const override {
    return std::vector<float>(static_cast<size_t>(shape_of(id.role, config_).front()),
                              is_norm(id.role) && !config_.norms().unit_offset ? 1.0f : 0.0f);
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    for (size_t i = 0; i < ids.size(); ++i)
      rows({Role::embedding}, ids[i], int64_t{ids[i]} + 1, DType::f32,
           out + i * static_cast<size_t>(config_.dim));
  }

 private:
  /// Rows [begin, end) of a matrix.
  ops::RandomPart part(MatrixId id, int64_t begin, int64_t end) const {
    constexpr int kRandomIds = 32;
    const int64_t cols = shape_of(id.role, config_).back();
    const auto n_sums = 2.0f * static_cast<float>(config_.n_layers);
    return {.seed = seed_,
            .tensor = static_cast<uint32_t>(id.layer * kRandomIds + info(id.role).random_id),
            .first = begin * cols,
            .n = (end - begin) * cols,
            .stddev = 0.02f / (ends_in_stream(id.role) ? std::sqrt(n_sums) : 1.0f)};
  }

  ModelConfig config_;
  uint64_t seed_;
};

}  // namespace

void StoredWeights::read(int64_t begin, int64_t end, const WeightFormat& to, void* out) const {
  const size_t row = row_bytes(format, in);
  const int64_t piece = to == format ? end - begin : static_cast<int64_t>(kReadBytes / row);
  const int64_t most = std::max<int64_t>(1, at_once > 0 ? at_once : piece);
  auto* at = static_cast<std::byte*>(out);
  std::vector<std::byte> stored;
  for (; begin < end; begin += most) {
    const int64_t last = std::min(end, begin + most);
    if (to == format) {
      fetch(begin, last, at);
    } else {
      const DType numbers = converted_type(name, format, to);
      stored.resize(static_cast<size_t>(last - begin) * row);
      fetch(begin, last, stored.data());
      if (is_coded(format))
        ops::dequantize(at, numbers, stored.data(), format, last - begin, in);
      else
        ops::convert(at, numbers, stored.data(), numbers_of(format), (last - begin) * in);
    }
    at += static_cast<size_t>(last - begin) * row_bytes(to, in);
  }
}

std::vector<float> StoredWeights::values(int64_t begin, int64_t end) const {
  std::vector<float> all(static_cast<size_t>((end - begin) * in));
  read(begin, end, DType::f32, all.data());
  return all;
}

std::unique_ptr<WeightSource> checkpoint_source(const ModelConfig& config, Checkpoint checkpoint,
                                                std::vector<std::string>* notes) {
  auto source = std::make_unique<CheckpointSource>(config, std::move(checkpoint));
  if (notes != nullptr) std::ranges::copy(source->notes(), std::back_inserter(*notes));
  return source;
}

std::unique_ptr<WeightSource> synthetic_source(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<SyntheticSource>(config, seed);
}

}  // namespace tandem::model
