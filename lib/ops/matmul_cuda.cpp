// Products on a GPU: cuBLASLt's, with algorithms chosen by measurement.
#include "ops/matmul_cuda.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "base/check.h"
#include "ops/cublaslt.h"
#include "ops/linear_device.h"
#include "ops/linear_kernels.h"

namespace tandem::ops::matmul_cuda {
namespace {

using cublaslt::Product;
using linear_cuda::kWorkspaceBytes;

// Packed documents ask for many numbers of rows.
constexpr size_t kMaxMemo = 4096;
constexpr int kCandidates = 8;

uint32_t alignment(const MatrixView& m) {
  return cublaslt::alignment(m.stride, m.dtype, reinterpret_cast<uintptr_t>(m.data));
}

Product product_of(const MatmulArgs& args) {
  return {.m = args.c.rows,
          .n = args.c.cols,
          .k = args.a_transposed ? args.a.rows : args.a.cols,
          .a_stride = args.a.stride,
          .b_stride = args.b.stride,
          .c_stride = args.c.stride,
          .a_transposed = args.a_transposed,
          .b_transposed = args.b_transposed,
          .type = args.a.dtype,
          .c_type = args.c.dtype,
          .accumulate = args.accumulate,
          .a_alignment = alignment(args.a),
          .b_alignment = alignment(args.b),
          .c_alignment = alignment(args.c)};
}

/// Names products that a choice is for: either m or k may be a number of rows.
std::string in_words(const Product& p) {
  const auto layout = [](bool transposed, uint32_t aligned) {
    return fmt::format("{}{}", transposed ? "t" : "n", aligned);
  };
  const std::string_view type = p.scales == cublaslt::Scales::rows     ? "fp8"
                                : p.scales == cublaslt::Scales::groups ? "fp8 g128"
                                                                       : dtype_name(p.type);
  return fmt::format("{} matmul m={} n={} k={} a={} b={} c={}{}{}", type, rows_bucket(p.m), p.n,
                     rows_bucket(p.k), layout(p.a_transposed, p.a_alignment),
                     layout(p.b_transposed, p.b_alignment), dtype_name(p.c_type), p.c_alignment,
                     p.accumulate ? " add" : "") +
         (p.bias ? " bias" : "");
}

LinearChoice::Algorithm find(const Product& p, int device) {
  const auto kept = linear_cuda::kept_choice(in_words(p), device);
  if (kept && kept->kernel == LinearChoice::Kernel::library &&
      cublaslt::can_run(device, p, kept->algorithm, kWorkspaceBytes))
    return kept->algorithm;
  const auto best = cublaslt::candidates(device, p, kWorkspaceBytes, 1);
  if (best.empty())
    throw make_error(ErrorKind::device, Device{Device::Kind::cuda, device}.name(),
                     "cuBLASLt {} has no algorithm for {}", cublaslt::version(), in_words(p))
        .hint(p.scales == cublaslt::Scales::none
                  ? "use --device cpu, or for LoRA a rank that is a multiple of 8"
                  : "leave model.activations out");
  return best.front();
}

cublaslt::Operands operands_of(const MatmulArgs& args, std::span<std::byte> workspace) {
  return {.c = args.c.data,
          .a = args.a.data,
          .b = args.b.data,
          .bias = nullptr,
          .workspace = workspace.data(),
          .workspace_bytes = kWorkspaceBytes,
          .scale = args.scale};
}

}  // namespace

LinearChoice::Algorithm choose(const Product& p, int device) {
  static std::mutex mutex;
  static std::map<std::pair<int, Product>, LinearChoice::Algorithm> memo;
  static uint64_t memo_of = 0;
  const std::scoped_lock lock(mutex);
  const uint64_t now = linear_cuda::choices_generation();
  if (memo_of != now || memo.size() >= kMaxMemo) memo.clear();
  memo_of = now;
  const std::pair key{device, p};
  if (const auto it = memo.find(key); it != memo.end()) return it->second;
  return memo[key] = find(p, device);
}

void run(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream) {
  TANDEM_CHECK(workspace.size() >= kWorkspaceBytes, "matmul: workspace of {} bytes is too small",
               workspace.size());
  const Product p = product_of(args);
  const int device = args.c.device.index;
  cublaslt::run(device, p, choose(p, device), operands_of(args, workspace), stream);
  cuda::launched("matmul", stream);
}

void tune(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream) {
  tune(product_of(args), operands_of(args, workspace), args.c.device.index, stream);
}

void tune(const Product& p, const cublaslt::Operands& operands, int device, Stream stream) {
  if (linear_cuda::kept_choice(in_words(p), device)) return;
  cuda::wait(stream);
  cuda::Queue queue(device);
  LinearChoice best;
  best.microseconds = 1e30;
  for (const auto& algorithm : cublaslt::candidates(device, p, kWorkspaceBytes, kCandidates)) {
    LinearChoice c{.algorithm = algorithm};
    c.microseconds = linear_cuda::measure(
        matrix_bytes(p.type, p.n, p.k), 2.0 * static_cast<double>(p.m * p.n * p.k),
        [&](size_t) { cublaslt::run(device, p, algorithm, operands, queue.stream()); }, queue);
    if (c.microseconds < best.microseconds) best = c;
  }
  if (best.microseconds < 1e30) linear_cuda::keep_choice(in_words(p), best, device);
}

}  // namespace tandem::ops::matmul_cuda
