// Codes that training reads on a GPU; ops/frozen_codes.h has those of the CPU.
#include <algorithm>

#include "base/check.h"
#include "ops/linear_kernels.h"
#include "ops/matmul_cuda.h"
#include "ops/operation.h"

namespace tandem::ops::linear_cuda {
namespace {

/// Rows of `bytes` that fit after the workspace of the library.
int64_t rows_in(std::span<std::byte> workspace, size_t bytes) {
  return static_cast<int64_t>((std::max(workspace.size(), kWorkspaceBytes) - kWorkspaceBytes) /
                              bytes);
}

/// Widens all outputs of the codes and some of their inputs after the other. Each panel gives
/// complete columns of dx: sums stay in the product's registers, and are rounded once.
/// visit    (columns of dx, by what dy is multiplied)
template <class Visit>
void each_panel(const Tensor& dx, const CudaLinear& w, std::span<std::byte> workspace,
                Stream stream, const Visit& visit) {
  const int64_t in = w.spec.in, out = w.spec.out;
  const size_t tile = matrix_bytes(DType::bf16, out, kTileInputs);
  const int64_t room = rows_in(workspace, tile);
  const int64_t tiles = (in + kTileInputs - 1) / kTileInputs;
  TANDEM_CHECK(room > 0, "{}: workspace of {} bytes cannot hold a panel", w.spec.name,
               workspace.size());
  const int64_t n_panels = (tiles + room - 1) / room;
  const int64_t each = (tiles + n_panels - 1) / n_panels * kTileInputs;
  auto* const panel = reinterpret_cast<bf16*>(workspace.data() + kWorkspaceBytes);
  for (int64_t begin = 0; begin < in; begin += each) {
    const int64_t n = std::min(each, in - begin);
    for (const Part& part : w.parts)
      coded::fill_panel(panel + part.first * n, w, part, 0, part.tiles.down(), begin, n, stream);
    visit(MatrixView(dx).columns(begin, n), MatrixView(panel, DType::bf16, out, n, w.spec.device));
  }
}

}  // namespace

namespace coded {

void fill_panel(bf16* panel, const CudaLinear& w, const Part& part, int first, int n, int64_t begin,
                int64_t inputs, Stream stream) {
  const CodeTiles& t = part.tiles;
  const int outputs = t.outputs(first, n), each = t.step();
  const int64_t output = part.first + int64_t{first} * each;
  if (is_coded(part.stored)) {
    launch(TANDEM_KERNEL(widen_tiles),
           {.out = panel,
            .tiles = t,
            .first = first,
            .n = n,
            .begin = as_int(begin),
            .inputs = as_int(inputs)},
           stream);
  } else {
    const auto bytes = [](int64_t numbers) { return static_cast<size_t>(numbers) * sizeof(bf16); };
    const std::byte* const from =
        w.weights + part.at + bytes(int64_t{first} * each * w.spec.in + begin);
    cuda::copy_rows(panel, bytes(inputs), from, bytes(w.spec.in), bytes(inputs), outputs, stream);
  }
  if (w.held.values == nullptr) return;
  const auto put = [&](bf16* rows, int64_t from) {
    launch(TANDEM_KERNEL(put_held),
           {.held = w.held,
            .out = rows,
            .first = as_int(from),
            .outputs = outputs,
            .begin = as_int(begin),
            .inputs = as_int(inputs)},
           stream);
  };
  put(panel, output);
  if (t.paired) put(panel + outputs * inputs, output + t.out / 2);
}

}  // namespace coded

void hold(CudaLinear& w, WeightPart part, std::span<const int32_t> index, void* values,
          Stream stream) {
  w.held = {.values = static_cast<bf16*>(values),
            .index = index.data(),
            .n = as_int(std::ssize(index)),
            .in = as_int(w.spec.in),
            .part = part};
  for (const Part& p : w.parts)
    launch(TANDEM_KERNEL(take_held),
           {.held = w.held,
            .tiles = p.tiles,
            .numbers = is_coded(p.stored) ? nullptr : reinterpret_cast<bf16*>(w.weights + p.at),
            .first = as_int(p.first)},
           stream);
}

bf16* held(const CudaLinear& w, WeightPart part) {
  return w.held.part == part ? w.held.values : nullptr;
}

void input_gradient(const Tensor& dx, const Tensor& dy, const CudaLinear& w, bool accumulate,
                    std::span<std::byte> workspace, Stream stream) {
  each_panel(dx, w, workspace, stream, [&](const MatrixView& columns, const MatrixView& panel) {
    matmul_cuda::run({.c = columns, .a = MatrixView(dy), .b = panel, .accumulate = accumulate},
                     workspace, stream);
  });
}

void tune_input_gradient(const Tensor& dx, const Tensor& dy, const CudaLinear& w,
                         std::span<std::byte> workspace, Stream stream) {
  each_panel(dx, w, workspace, stream, [&](const MatrixView& columns, const MatrixView& panel) {
    matmul_cuda::tune({.c = columns, .a = MatrixView(dy), .b = panel}, workspace, stream);
  });
}

void each_rows(const CudaLinear& w, int64_t first, int64_t n, std::span<std::byte> workspace,
               Stream stream,
               const std::function<void(int64_t, const Tensor&, std::span<std::byte>)>& visit) {
  const int64_t in = w.spec.in;
  auto* const panel = reinterpret_cast<bf16*>(workspace.data() + kWorkspaceBytes);
  const size_t tile = matrix_bytes(DType::bf16, kTileOutputs, in);
  const int64_t room = rows_in(workspace, tile);
  TANDEM_CHECK(room > 0, "{}: workspace of {} bytes cannot hold a panel", w.spec.name,
               workspace.size());
  for (const Part& part : w.parts) {
    const CodeTiles& t = part.tiles;
    const int64_t halves = t.paired ? 2 : 1, each = kTileOutputs / halves, height = t.out / halves;
    for (int64_t half = 0; half < halves; ++half) {
      const int64_t begin = part.first + half * height;
      const int64_t low = std::clamp<int64_t>(first - begin, 0, height),
                    high = std::clamp<int64_t>(first + n - begin, 0, height);
      for (int64_t row = low; row < high;) {
        const int64_t from = row / each, end = std::min(high, (from + room) * each);
        const auto tiles = (end + each - 1) / each - from;
        coded::fill_panel(panel, w, part, as_int(from), as_int(tiles), 0, in, stream);
        const int64_t skip = half * t.outputs(as_int(from), as_int(tiles)) + row - from * each;
        visit(begin + row, Tensor(panel + skip * in, DType::bf16, {end - row, in}, w.spec.device),
              workspace.first(kWorkspaceBytes));
        row = end;
      }
    }
  }
}

}  // namespace tandem::ops::linear_cuda
