// Dense layers on a GPU whose weights are codes.
#include <algorithm>

#include "base/check.h"
#include "ops/cublaslt.h"
#include "ops/elementwise.h"
#include "ops/linear_kernels.h"
#include "ops/loading.h"
#include "ops/matmul_cuda.h"
#include "ops/operation.h"

namespace tandem::ops::linear_cuda {
namespace coded {
namespace {

/// This number of passes over codes, with a few rows each, costs less than widening the codes once.
/// 16 rows of an 8B model take about a third of that, on an H200.
constexpr int64_t kMostPasses = 3;

bool fits(const CodeTiles& tiles, int64_t rows, bool norm = false) {
  return !tiles.by_input && cuda_table().coded_linear_fits(tiles, as_int(rows), norm);
}

/// Rows that coded_linear takes at once where its passes cost less than widening, else 0.
int64_t rows_at_once(const CodeTiles& tiles, int64_t rows) {
  if (fits(tiles, rows)) return rows;
  int64_t n = std::min<int64_t>(rows, kSkinnyRows);
  while (n > 0 && !tiles.by_input && !fits(tiles, n)) --n;
  return n * kMostPasses >= rows ? n : 0;
}

std::byte* at_column(const Tensor& y, int64_t row, int64_t column) {
  return static_cast<std::byte*>(y.raw()) +
         static_cast<size_t>(row * y.row_size() + column) * dtype_bytes(y.dtype());
}

/// Adds products by input to y, `step` rows at a time.
void run_strips(const Operands& at, const CudaLinear& w, int64_t step, Stream stream) {
  for (int64_t row = 0; row < at.x.rows(); row += step)
    launch(TANDEM_KERNEL(down_channels),
           {.out = reinterpret_cast<float*>(at_column(at.y, row, 0)),
            .y = at_column(at.x, row, 0),
            .w = nullptr,
            .bias = w.bias,
            .ids = nullptr,
            .n = nullptr,
            .y_stride = at.x.row_size(),
            .rows = as_int(std::min(step, at.x.rows() - row)),
            .width = as_int(w.spec.out),
            .n_channels = as_int(w.spec.in),
            .most = as_int(w.spec.in),
            .type = at.x.dtype(),
            .codes = w.parts.front().tiles},
           stream);
}

/// Writes a part's columns of y, from gates where fusion.gate is given, `step` rows at a time.
void run_tiles(const Operands& at, const CudaLinear& w, const Part& part, bool accumulate,
               const LinearFusion& fusion, int64_t step, Stream stream) {
  const auto x_bytes = static_cast<size_t>(at.x.row_size()) * dtype_bytes(at.x.dtype());
  for (int64_t row = 0; row < at.x.rows(); row += step)
    launch(
        TANDEM_KERNEL(coded_linear),
        {.product = {.y = at_column(at.y, row, part.first),
                     .x = static_cast<std::byte*>(at.x.raw()) + static_cast<size_t>(row) * x_bytes,
                     .w = nullptr,
                     .bias = w.bias == nullptr ? nullptr : w.bias + part.first,
                     .norm_weight = fusion.norm_weight,
                     .norm_eps = fusion.norm_eps,
                     .rows = as_int(std::min(step, at.x.rows() - row)),
                     .out = part.tiles.out,
                     .in = part.tiles.in,
                     .y_type = at.y.dtype(),
                     .accumulate = accumulate,
                     .gated = fusion.gate.has_value(),
                     .gate = fusion.gate.value_or(Gate::silu),
                     .stages = 0},
         .w = part.tiles,
         .y_stride = as_int(at.y.row_size())},
        stream);
}

/// Writes n columns of y from column `first` on, by numbers [n, in].
/// tunes    the library's algorithm is chosen by measuring
void run_numbers(const Operands& at, const CudaLinear& w, const void* numbers, int64_t first,
                 int64_t n, bool accumulate, Stream stream, bool tunes = false) {
  const Tensor &x = at.x, &y = at.y;
  const DType type = y.dtype();
  const auto c = reinterpret_cast<uintptr_t>(at_column(y, 0, first));
  const uint32_t of_in = cublaslt::alignment(x.row_size(), x.dtype());
  const cublaslt::Product product{.m = x.rows(),
                                  .n = n,
                                  .k = x.row_size(),
                                  .a_stride = x.row_size(),
                                  .b_stride = x.row_size(),
                                  .c_stride = y.row_size(),
                                  .b_transposed = true,
                                  .type = x.dtype(),
                                  .c_type = type,
                                  .accumulate = accumulate,
                                  .bias = w.spec.bias,
                                  .a_alignment = of_in,
                                  .b_alignment = of_in,
                                  .c_alignment = cublaslt::alignment(y.row_size(), type, c)};
  const void* bias = nullptr;
  if (w.spec.bias && type == DType::bf16) bias = w.rounded_bias + first;
  if (w.spec.bias && type == DType::f32) bias = w.bias + first;
  const int device = w.spec.device.index;
  const cublaslt::Operands operands{.c = at_column(y, 0, first),
                                    .a = x.raw(),
                                    .b = numbers,
                                    .bias = bias,
                                    .workspace = at.workspace.data(),
                                    .workspace_bytes = kWorkspaceBytes};
  if (tunes) matmul_cuda::tune(product, operands, device, stream);
  cublaslt::run(device, product, matmul_cuda::choose(product, device), operands, stream);
  cuda::launched("linear", stream);
}

/// Widens a panel of codes after the other to numbers, which the library multiplies.
void run_panels(const Operands& at, const CudaLinear& w, const Part& part, bool accumulate,
                Stream stream, bool tunes = false) {
  const CodeTiles& t = part.tiles;
  const int64_t in = w.spec.in;
  std::byte* const panel = at.workspace.data() + kWorkspaceBytes;
  const size_t tile = matrix_bytes(DType::bf16, t.outputs_of_tile(), in);
  const int step = static_cast<int>((at.workspace.size() - kWorkspaceBytes) / tile);
  TANDEM_CHECK(step > 0, "{}: workspace of {} bytes cannot hold a panel", w.spec.name,
               at.workspace.size());
  for (int first = 0; first < t.down(); first += step) {
    const int n = std::min(step, t.down() - first), outputs = t.outputs(first, n);
    fill_panel(reinterpret_cast<bf16*>(panel), w, part, first, n, 0, in, stream);
    const int64_t begin = part.first + first * int64_t{t.step()};
    if (!t.paired || n == t.down()) {
      run_numbers(at, w, panel, begin, t.paired ? t.out : outputs, accumulate, stream, tunes);
      continue;
    }
    run_numbers(at, w, panel, begin, outputs, accumulate, stream, tunes);
    run_numbers(at, w, panel + matrix_bytes(DType::bf16, outputs, in), begin + t.out / 2, outputs,
                accumulate, stream, tunes);
  }
}

}  // namespace

bool can_fuse(const CudaLinear& w, int64_t rows, bool norm, bool gated) {
  const CodeTiles& t = w.parts.front().tiles;
  return w.parts.size() == 1 && w.held.values == nullptr && t.paired >= gated && rows > 0 &&
         rows <= kSkinnyRows && fits(t, rows, norm);
}

void run_fused(const Operands& at, const LinearFusion& fusion, const CudaLinear& w, bool accumulate,
               Stream stream) {
  run_tiles(at, w, w.parts.front(), accumulate, fusion, at.x.rows(), stream);
}

void run(const Operands& at, const CudaLinear& w, bool accumulate, std::optional<Gate> gate,
         Stream stream) {
  const int64_t rows = at.x.rows();
  const CodeTiles& only = w.parts.front().tiles;
  const bool holds = w.held.values != nullptr;  // then codes are widened
  if (gate && w.parts.size() == 1 && only.paired) {
    if (const int64_t step = holds ? 0 : rows_at_once(only, rows); step > 0)
      return run_tiles(at, w, w.parts.front(), accumulate, {.gate = gate}, step, stream);
  }
  Operands all = at;
  if (gate) all.y = at.gate_up;
  for (const Part& part : w.parts) {
    if (!is_coded(part.stored) && !holds) {
      run_numbers(all, w, w.weights + part.at, part.first, part.tiles.out, accumulate, stream);
      continue;
    }
    const int64_t step = holds ? 0 : rows_at_once(part.tiles, rows);
    if (step > 0 && part.tiles.by_input && at.y.dtype() == DType::f32) {
      if (!accumulate) clear(at.y.as<float>(), at.y.elements(), stream);
      run_strips(at, w, step, stream);
    } else if (step > 0 && !part.tiles.by_input)
      run_tiles(all, w, part, accumulate, {}, step, stream);
    else
      run_panels(all, w, part, accumulate, stream);
  }
  if (gate) gate_mul(at.y, at.gate_up, *gate, stream);
}

}  // namespace coded

void tune_codes(const Operands& at, const CudaLinear& w, bool accumulate, Stream stream) {
  const bool holds = w.held.values != nullptr;
  for (const Part& part : w.parts)
    if (!holds && !is_coded(part.stored))
      coded::run_numbers(at, w, w.weights + part.at, part.first, part.tiles.out, accumulate, stream,
                         true);
    else if (holds || coded::rows_at_once(part.tiles, at.x.rows()) == 0)
      coded::run_panels(at, w, part, accumulate, stream, true);
}

}  // namespace tandem::ops::linear_cuda
