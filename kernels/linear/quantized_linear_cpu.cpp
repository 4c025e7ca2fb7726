#include "kernels/linear/quantized_linear_cpu.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/parallel.h"
#include "kernels/linear/packed_linear_cpu.h"

namespace tandem {
namespace {

// Inputs that are multiplied together take at most this much, but kLeastRows rows at least.
constexpr int64_t kInputBytes = int64_t{4} << 20;
// Rows that a thread quantises at a time.
constexpr int kRowsEach = 4;
// Panels of a task: at most as many bytes, which stay in the second-level cache between rows.
constexpr int64_t kTaskBytes = int64_t{256} << 10;

int64_t rows_at_once(const CodedMatrix& m) {
  const int64_t bytes = m.code == Code::fp8 ? sizeof(float) : 1;
  return std::max(kLeastRows, kInputBytes / (bytes * m.inputs()));
}

/// The product of only rows [begin, begin + n).
QuantizedLinearParams rows_of(const QuantizedLinearParams& p, int64_t begin, int64_t n) {
  QuantizedLinearParams part = p;
  const auto bytes = [](DType t) { return t == DType::bf16 ? sizeof(bf16) : sizeof(float); };
  part.x =
      static_cast<const char*>(p.x) + static_cast<size_t>(begin * p.matrix.in) * bytes(p.x_type);
  part.y = static_cast<char*>(p.y) + static_cast<size_t>(begin * p.y_stride) * bytes(p.y_type);
  part.rows = static_cast<int>(n);
  return part;
}

}  // namespace

size_t quantized_linear_workspace_bytes(const CodedMatrix& m, int64_t rows) {
  return QuantizedInputs::bytes(m, std::min(rows, rows_at_once(m)));
}

void quantized_linear_with(const QuantizedLinearKernel& kernel, const QuantizedLinearParams& all,
                           void* workspace, int threads) {
  const int64_t most = rows_at_once(all.matrix);
  const auto panels = static_cast<int>(divide_up(all.out, kCodePanel));
  if (int64_t{all.rows} * all.out * all.matrix.in < kAloneWork) threads = 1;
  const int64_t in_cache = std::max<int64_t>(1, kTaskBytes / all.matrix.panel_bytes());
  const auto each = static_cast<int>(
      std::clamp<int64_t>(panels / (kTasksPerThread * int64_t{threads}), 1, in_cache));
  for (int64_t begin = 0; begin < all.rows; begin += most) {
    const QuantizedLinearParams p = rows_of(all, begin, std::min(most, all.rows - begin));
    const QuantizedInputs inputs(p.matrix, p.rows, workspace);
    const auto pieces = static_cast<int>(divide_up(p.rows, kRowsEach));
    parallel_for(pieces, pieces == 1 ? 1 : threads, [&](int i) {
      kernel.quantize(p, inputs, {i * kRowsEach, std::min(p.rows, (i + 1) * kRowsEach)});
    });
    parallel_for(static_cast<int>(divide_up(panels, each)), threads, [&](int i) {
      kernel.run(p, inputs, {i * each, std::min(panels, (i + 1) * each)}, {0, p.rows});
    });
  }
}

}  // namespace tandem
