// Gradient products on a GPU: cuBLASLt's, with algorithms chosen by measurement.
#include <array>
#include <map>
#include <mutex>

#include "base/check.h"
#include "kernels/cuda_table.h"
#include "ops/cublaslt.h"
#include "ops/linear_device.h"
#include "ops/linear_kernels.h"

namespace tandem::ops::linear_cuda {
namespace {

// Packed documents ask for many numbers of rows.
constexpr size_t kMaxMemo = 4096;
constexpr int kCandidates = 8;

/// The choice for a product, looked up once for each number of rows.
LinearChoice choose(const LinearProduct& p, int device) {
  using Key = std::tuple<int, LinearRole, int64_t, int64_t, int64_t, DType, DType, bool>;
  static std::mutex mutex;
  static std::map<Key, LinearChoice> memo;
  static uint64_t memo_of = 0;
  const std::scoped_lock lock(mutex);
  if (memo_of != choices_generation() || memo.size() >= kMaxMemo) memo.clear();
  memo_of = choices_generation();
  const Key key{device, p.role, p.rows, p.out, p.in, p.dtype, p.y_type, p.accumulate};
  if (const auto it = memo.find(key); it != memo.end()) return it->second;
  return memo[key] = known_choice(p, device);
}

void run(const LinearChoice& c, const LinearProduct& p, const Tensor& y, const void* x,
         const void* w, std::span<std::byte> workspace, Stream stream) {
  cublaslt::run(y.device().index, p, c.algorithm,
                {.y = y.raw(),
                 .x = x,
                 .w = w,
                 .bias = nullptr,
                 .workspace = workspace.data(),
                 .workspace_bytes = kWorkspaceBytes},
                stream);
}

}  // namespace

void run_gradient(const LinearProduct& p, const Tensor& y, const void* x, const void* w,
                  std::span<std::byte> workspace, Stream stream) {
  TANDEM_CHECK(workspace.size() >= kWorkspaceBytes, "workspace of {} bytes", workspace.size());
  run(choose(p, y.device().index), p, y, x, w, workspace, stream);
  cuda::launched("linear gradient", stream);
}

void tune_gradient(const LinearProduct& p, const Tensor& y, const void* x, const void* w,
                   std::span<std::byte> workspace, Stream stream) {
  const int device = y.device().index;
  if (is_chosen(p, device)) return;
  cuda::wait(stream);
  cuda::Queue queue(device);
  LinearChoice best;
  best.microseconds = 1e30;
  for (const auto& algorithm : cublaslt::candidates(device, p, kWorkspaceBytes, kCandidates)) {
    LinearChoice c{.algorithm = algorithm};
    c.microseconds =
        measure(p, [&](size_t) { run(c, p, y, x, w, workspace, queue.stream()); }, queue);
    if (c.microseconds < best.microseconds) best = c;
  }
  if (best.microseconds < 1e30) keep_choice(p, best, device);
}

void read_part(const WeightPartParams& p, Stream stream) {
  cuda_table().read_weight_part(p, stream);
  cuda::launched("read_weight_part", stream);
}

void write_part(const WeightPartParams& p, Stream stream) {
  cuda_table().write_weight_part(p, stream);
  cuda::launched("write_weight_part", stream);
}

}  // namespace tandem::ops::linear_cuda
