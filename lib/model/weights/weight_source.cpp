#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>

#include "base/check.h"
#include "base/parallel.h"
#include "model/weights/weights.h"
#include "ops/loading.h"

namespace tandem::model {
namespace {

/// Weights that have to be converted are read in pieces of this size: small compared with any plan,
/// and still in L2 when they are converted.
constexpr size_t kReadBytes = size_t{64} << 10;
/// A thread reads no less at a time: a system call costs little compared with it.
constexpr size_t kLeastRead = size_t{256} << 10;

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(const ModelConfig& config, Checkpoint checkpoint)
      : config_(config), checkpoint_(std::move(checkpoint)) {
    check_checkpoint(config_, checkpoint_);
    embedding_ = checkpoint_.weight({Role::embedding}, config_);
  }

  void rows(MatrixId id, int64_t begin, int64_t end, DType dtype, void* out) const override {
    const io::TensorView t = checkpoint_.weight(id, config_);
    const int64_t cols = t.shape.back();
    const auto piece = static_cast<int64_t>(kLeastRead / dtype_bytes(t.dtype));
    const int64_t first = begin * cols, n = (end - begin) * cols;
    std::mutex mutex;
    std::exception_ptr failure;
    parallel_ranges(static_cast<int>((n + piece - 1) / piece), 1, [&](int from, int to) {
      try {
        const int64_t lo = from * piece, hi = std::min(n, to * piece);
        numbers(t, first + lo, hi - lo, dtype,
                static_cast<std::byte*>(out) + static_cast<size_t>(lo) * dtype_bytes(dtype));
      } catch (...) {
        const std::scoped_lock lock(mutex);
        failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
  }

  std::vector<float> vector(MatrixId id) const override {
    const io::TensorView t = checkpoint_.weight(id, config_);
    std::vector<float> values(static_cast<size_t>(t.shape.front()));
    numbers(t, 0, t.shape.front(), DType::f32, values.data());
    return values;
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    const auto dim = static_cast<size_t>(config_.dim);
    const size_t row_bytes = dim * dtype_bytes(embedding_.dtype);
    const size_t most = std::min(ids.size(), std::max<size_t>(1, kReadBytes / row_bytes));
    std::vector<std::byte> rows(most * row_bytes);
    std::vector<int32_t> order(most);
    std::iota(order.begin(), order.end(), 0);
    for (size_t first = 0; first < ids.size(); first += most) {
      const size_t n = std::min(most, ids.size() - first);
      for (size_t r = 0; r < n; ++r)
        checkpoint_.read(embedding_, static_cast<size_t>(ids[first + r]) * row_bytes,
                         std::span(rows).subspan(r * row_bytes, row_bytes));
      ops::embed(out + first * dim, rows.data(), embedding_.dtype, std::span(order).first(n),
                 config_.dim);
    }
  }

 private:
  /// Numbers [first, first + n) of a tensor as `dtype`. Read, not copied from the mapping: that
  /// would be slower by its page faults, keep pages resident, and crash where the file has become
  /// shorter.
  void numbers(const io::TensorView& t, int64_t first, int64_t n, DType dtype, void* out) const {
    const size_t size = dtype_bytes(t.dtype);
    auto* to = static_cast<std::byte*>(out);
    const auto begin = static_cast<size_t>(first) * size, bytes = static_cast<size_t>(n) * size;
    if (t.dtype == dtype) return checkpoint_.read(t, begin, std::span(to, bytes));
    std::vector<std::byte> piece(std::min(bytes, kReadBytes));
    for (size_t done = 0; done < bytes; done += piece.size()) {
      const auto part = std::span(piece).first(std::min(piece.size(), bytes - done));
      checkpoint_.read(t, begin + done, part);
      ops::convert(to + done / size * dtype_bytes(dtype), dtype, part.data(), t.dtype,
                   static_cast<int64_t>(part.size() / size));
    }
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
  io::TensorView embedding_;
};

class SyntheticSource final : public WeightSource {
 public:
  SyntheticSource(const ModelConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

  void rows(MatrixId id, int64_t begin, int64_t end, DType dtype, void* out) const override {
    ops::fill_random(out, dtype, part(id, begin, end));
  }

  bool rows_on_device(MatrixId id, int64_t begin, int64_t end, DType dtype, void* device,
                      Stream stream) const override {
    ops::fill_random(device, dtype, part(id, begin, end), stream);
    return true;
  }

  std::vector<float> vector(MatrixId id) const override {
    return std::vector<float>(static_cast<size_t>(shape_of(id.role, config_).front()),
                              is_norm(id.role) ? 1.0f : 0.0f);
  }

  void embed(std::span<const int32_t> ids, float* out) const override {
    for (size_t i = 0; i < ids.size(); ++i)
      ops::fill_random(out + i * static_cast<size_t>(config_.dim), DType::f32,
                       part({Role::embedding}, ids[i], int64_t{ids[i]} + 1));
  }

 private:
  /// Rows [begin, end) of a matrix.
  ops::RandomPart part(MatrixId id, int64_t begin, int64_t end) const {
    const int64_t cols = shape_of(id.role, config_).back();
    return {.seed = seed_,
            .tensor = tensor_id(id),
            .first = begin * cols,
            .n = (end - begin) * cols,
            .stddev = stddev(id.role)};
  }
  static uint32_t tensor_id(MatrixId id) {
    constexpr uint32_t kRandomIds = 32;
    return static_cast<uint32_t>(id.layer) * kRandomIds +
           static_cast<uint32_t>(info(id.role).random_id);
  }

  float stddev(Role weight) const {
    return ends_in_stream(weight) ? 0.02f / std::sqrt(2.0f * static_cast<float>(config_.n_layers))
                                  : 0.02f;
  }

  ModelConfig config_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<WeightSource> checkpoint_source(const ModelConfig& config, Checkpoint checkpoint) {
  return std::make_unique<CheckpointSource>(config, std::move(checkpoint));
}

std::unique_ptr<WeightSource> synthetic_source(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<SyntheticSource>(config, seed);
}

}  // namespace tandem::model
