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
/// Products of at most this number of rows never round inputs to fp8: decoding and most
/// verification then read them as they are.
constexpr int64_t kExactRows = 256;

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

/// Inputs of a product in fp8, and the scales of both operands.
struct Rounded {
  uint8_t* x = nullptr;
  float *x_scales = nullptr, *w_scales = nullptr;
  cublaslt::Scales kind = cublaslt::Scales::none;
};

/// Writes n columns of y from column `first` on, by numbers [n, in] or, with rounded inputs, codes.
/// tunes    the library's algorithm is chosen by measuring
void run_numbers(const Operands& at, const CudaLinear& w, const void* numbers, int64_t first,
                 int64_t n, bool accumulate, Stream stream, bool tunes = false,
                 const Rounded& rounded = {}) {
  const Tensor &x = at.x, &y = at.y;
  const DType type = y.dtype();
  const auto c = reinterpret_cast<uintptr_t>(at_column(y, 0, first));
  const bool is_fp8 = rounded.kind != cublaslt::Scales::none;
  const uint32_t of_in = is_fp8 ? 16 : cublaslt::alignment(x.row_size(), x.dtype());
  const cublaslt::Product product{.m = x.rows(),
                                  .n = n,
                                  .k = x.row_size(),
                                  .a_stride = x.row_size(),
                                  .b_stride = x.row_size(),
                                  .c_stride = y.row_size(),
                                  .b_transposed = true,
                                  .type = x.dtype(),
                                  .c_type = type,
                                  .scales = rounded.kind,
                                  .accumulate = accumulate,
                                  .bias = w.spec.bias,
                                  .a_alignment = of_in,
                                  .b_alignment = of_in,
                                  .c_alignment = cublaslt::alignment(y.row_size(), type, c)};
  const void* bias = nullptr;
  if (w.spec.bias && (is_fp8 || type == DType::bf16))
    bias = w.rounded_bias + first;
  else if (w.spec.bias)
    bias = w.bias + first;
  const int device = w.spec.device.index;
  const cublaslt::Operands operands{.c = at_column(y, 0, first),
                                    .a = is_fp8 ? rounded.x : x.raw(),
                                    .b = numbers,
                                    .bias = bias,
                                    .workspace = at.workspace.data(),
                                    .workspace_bytes = kWorkspaceBytes,
                                    .a_scales = rounded.x_scales,
                                    .b_scales = rounded.w_scales};
  if (tunes) matmul_cuda::tune(product, operands, device, stream);
  cublaslt::run(device, product, matmul_cuda::choose(product, device), operands, stream);
  cuda::launched("linear", stream);
}

/// Fills one panel of a part's outputs after the other, and multiplies it.
/// row       bytes of an output in a panel
/// fill      (first, n, height): rows of tiles, and outputs of a product
/// multiply  (place, column, n): outputs from `place` on in the panel give columns of y
template <class Fill, class Multiply>
void each_panel(const CudaLinear& w, const Part& part, size_t bytes, size_t row, const Fill& fill,
                const Multiply& multiply) {
  const CodeTiles& t = part.tiles;
  int step = static_cast<int>(bytes / (static_cast<size_t>(t.outputs_of_tile()) * row));
  TANDEM_CHECK(step > 0, "{}: workspace cannot hold a panel", w.spec.name);
  if (step > 1) step -= step % 2;  // halves in sixteens
  for (int first = 0; first < t.down(); first += step) {
    const int n = std::min(step, t.down() - first), outputs = t.outputs(first, n);
    const int64_t begin = part.first + first * int64_t{t.step()};
    const bool halves = t.paired && n < t.down();
    const int height = t.paired && !halves ? t.out : outputs;
    fill(first, n, height);
    multiply(0, begin, height);
    if (halves) multiply(outputs, begin + t.out / 2, outputs);
  }
}

/// Widens codes to numbers, which the library multiplies.
void run_widened(const Operands& at, const CudaLinear& w, const Part& part, bool accumulate,
                 Stream stream, bool tunes = false) {
  const int64_t in = w.spec.in;
  auto* const panel = reinterpret_cast<bf16*>(at.workspace.data() + kWorkspaceBytes);
  each_panel(
      w, part, at.workspace.size() - kWorkspaceBytes, row_bytes(DType::bf16, in),
      [&](int first, int n, int) { fill_panel(panel, w, part, first, n, 0, in, stream); },
      [&](int64_t place, int64_t column, int64_t n) {
        run_numbers(at, w, panel + place * in, column, n, accumulate, stream, tunes);
      });
}

/// Rounds inputs to fp8; the library multiplies them by the codes as they are.
void run_rounded(const Operands& at, const CudaLinear& w, const Part& part, bool accumulate,
                 Stream stream, bool tunes = false) {
  const CodeTiles& t = part.tiles;
  const int64_t in = w.spec.in, rows = at.x.rows();
  const RoundedBytes bytes(w.spec, rows);
  std::byte* const memory = at.workspace.data() + kWorkspaceBytes;
  auto* const panel = reinterpret_cast<uint8_t*>(memory + bytes.all());
  Rounded rounded{.x = reinterpret_cast<uint8_t*>(memory),
                  .x_scales = reinterpret_cast<float*>(memory + bytes.codes),
                  .w_scales = reinterpret_cast<float*>(memory + bytes.codes + bytes.x_scales),
                  .kind = t.group == 0 ? cublaslt::Scales::rows : cublaslt::Scales::groups};
  float* const w_scales = rounded.w_scales;
  const int64_t groups = t.group == 0 ? 1 : in / t.group;
  launch(TANDEM_KERNEL(round_inputs),
         {.codes = rounded.x,
          .scales = rounded.x_scales,
          .x = at.x.as<bf16>(),
          .rows = as_int(rows),
          .in = as_int(in),
          .group = t.group},
         stream);
  each_panel(
      w, part, at.workspace.size() - kWorkspaceBytes - bytes.all(), static_cast<size_t>(in),
      [&](int first, int n, int height) {
        launch(TANDEM_KERNEL(plain_codes),
               {.codes = panel,
                .scales = w_scales,
                .tiles = t,
                .first = first,
                .n = n,
                .height = height},
               stream);
      },
      [&](int64_t place, int64_t column, int64_t n) {
        rounded.w_scales = w_scales + place * groups;
        run_numbers(at, w, panel + place * in, column, n, accumulate, stream, tunes, rounded);
      });
}

/// Multiplies by codes in panels.
void run_panels(const Operands& at, const CudaLinear& w, const Part& part, bool accumulate,
                Stream stream, bool tunes = false) {
  const int64_t rows = at.x.rows();
  const bool rounds =
      w.spec.fp8_inputs && w.held.values == nullptr && can_round(part) && rows > kExactRows;
  if (!rounds) return run_widened(at, w, part, accumulate, stream, tunes);
  // The library takes scales of groups for multiples of four rows. Others are not rounded.
  const int64_t whole = part.tiles.group == 0 ? rows : rows / 4 * 4;
  Operands some = at;
  some.x = at.x.slice(0, whole);
  some.y = at.y.slice(0, whole);
  run_rounded(some, w, part, accumulate, stream, tunes);
  if (whole == rows || tunes) return;
  some.x = at.x.slice(whole, rows - whole);
  some.y = at.y.slice(whole, rows - whole);
  run_tiles(some, w, part, accumulate, {}, rows - whole, stream);
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
