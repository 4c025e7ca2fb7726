#include "ops/linear_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/cuda_table.h"
#include "ops/cublaslt.h"
#include "ops/elementwise.h"

namespace tandem::ops::linear_cuda {
namespace {

constexpr int kLibraryCandidates = 12, kTiledCandidates = 10;
// To be raised when a kernel changes so that other choices may be the fastest.
constexpr int kSkinnyRevision = 1, kTiledRevision = 2;

bool channels_fit(const LinearProduct& p) {
  return p.by_input && p.rows <= kListedRows && p.accumulate && p.y_type == DType::f32;
}

bool skinny_fits(const LinearProduct& p, int stages, bool norm = false) {
  return !p.by_input && p.dtype == DType::bf16 && p.rows <= kSkinnyRows &&
         cuda_table().skinny_linear_fits(
             {static_cast<int>(p.rows), static_cast<int>(p.in), stages, norm});
}

TiledLinearParams tiled_params(const LinearProduct& p, const LinearTiling& tiling) {
  return {.rows = static_cast<int>(p.rows),
          .out = static_cast<int>(p.out),
          .in = static_cast<int>(p.in),
          .y_type = p.y_type,
          .accumulate = p.accumulate,
          .gated = p.gate.has_value(),
          .gate = p.gate.value_or(Gate::silu),
          .tiling = tiling};
}

bool tiled_fits(const LinearProduct& p, const LinearTiling& tiling) {
  return !p.by_input && p.dtype == DType::bf16 && p.rows <= kTiledRows &&
         cuda_table().tiled_linear_fits(tiled_params(p, tiling));
}

/// How well a tiling suits a device, as measured on an H200: what counts is that all
/// multiprocessors read until the end; large clusters are slower to start.
double suitability(const LinearProduct& p, const LinearTiling& t, int multiprocessors) {
  constexpr double kPerPart = 0.03;
  const int64_t tile = int64_t{64} * t.groups;
  const int64_t blocks = (p.out + tile - 1) / tile * t.parts;
  const int64_t room = int64_t{multiprocessors} * t.blocks;
  const int64_t turns = (blocks + room - 1) / room;
  // Parts of a tile have little to do; in a second turn they would wait for each other.
  if (turns > 1 && t.parts > 1) return 0;
  return static_cast<double>(blocks) / static_cast<double>(turns * room) - kPerPart * t.parts;
}

std::vector<LinearChoice> tiled_candidates(const LinearProduct& p, int device) {
  const int multiprocessors = cuda::device_info(device).multiprocessors;
  std::vector<std::pair<double, LinearTiling>> found;
  for (const int groups : {1, 2, 3, 4})
    for (const int parts : {1, 2, 3, 4, 6, 8})
      for (const int blocks : {1, 2, 3})
        if (const LinearTiling t{groups, parts, blocks}; tiled_fits(p, t))
          found.emplace_back(suitability(p, t, multiprocessors), t);
  std::ranges::stable_sort(found, std::greater{}, [](const auto& f) { return f.first; });
  std::vector<LinearChoice> best;
  for (const auto& [suits, tiling] : found)
    if (best.size() < kTiledCandidates)
      best.push_back({.kernel = LinearChoice::Kernel::tiled, .tiling = tiling});
  return best;
}

/// y [rows, out] = x [rows, in] W^T; buffers are aligned well.
cublaslt::Product library_product(const LinearProduct& p) {
  const uint32_t of_in = cublaslt::alignment(p.in, p.dtype);
  const int64_t of_weights = p.by_input ? p.out : p.in;
  return {.m = p.rows,
          .n = p.out,
          .k = p.in,
          .a_stride = p.in,
          .b_stride = of_weights,
          .c_stride = p.out,
          .b_transposed = !p.by_input,
          .type = p.dtype,
          .c_type = p.y_type,
          .accumulate = p.accumulate,
          .bias = p.bias,
          .a_alignment = of_in,
          .b_alignment = cublaslt::alignment(of_weights, p.dtype),
          .c_alignment = cublaslt::alignment(p.out, p.y_type)};
}

std::vector<LinearChoice> library_candidates(const LinearProduct& p, int device, int most) {
  std::vector<LinearChoice> found;
  for (const auto& a : cublaslt::candidates(device, library_product(p), kWorkspaceBytes, most))
    found.push_back({.algorithm = a});
  return found;
}

void run_tiled(const LinearChoice& c, const LinearProduct& p, const Operands& at,
               const CudaLinear& w, Stream stream) {
  TiledLinearParams params = tiled_params(p, c.tiling);
  params.y = at.y.raw();
  params.x = at.x.as<bf16>();
  params.w = reinterpret_cast<const bf16*>(w.weights);
  params.bias = w.bias;
  cuda_table().tiled_linear(params, stream);
}

/// y += x W^T + b by input.
void run_channels(const LinearProduct& p, const Operands& at, const CudaLinear& w, Stream stream) {
  cuda_table().down_channels({.out = at.y.as<float>(),
                              .y = at.x.raw(),
                              .w = w.weights,
                              .bias = w.bias,
                              .ids = nullptr,
                              .n = nullptr,
                              .y_stride = p.in,
                              .rows = static_cast<int>(p.rows),
                              .width = static_cast<int>(p.out),
                              .n_channels = static_cast<int>(p.in),
                              .most = static_cast<int>(p.in),
                              .type = p.dtype},
                             stream);
  cuda::launched("down_channels", stream);
}

void run_library(const LinearChoice& c, const LinearProduct& p, const Operands& at,
                 const CudaLinear& w, Stream stream) {
  const Tensor& y = p.gate ? at.gate_up : at.y;
  const void* bias = p.y_type == DType::bf16 ? static_cast<const void*>(w.rounded_bias) : w.bias;
  cublaslt::run(w.spec.device.index, library_product(p), c.algorithm,
                {.c = y.raw(),
                 .a = at.x.raw(),
                 .b = w.weights,
                 .bias = bias,
                 .workspace = at.workspace.data(),
                 .workspace_bytes = kWorkspaceBytes},
                stream);
  cuda::launched("linear", stream);
  if (p.gate) gate_mul(at.y, at.gate_up, *p.gate, stream);
}

}  // namespace

std::string kernel_versions() {
  return fmt::format("cuBLASLt {}, skinny_linear {}, tiled_linear {}", cublaslt::version(),
                     kSkinnyRevision, kTiledRevision);
}

std::vector<LinearChoice> skinny_candidates(const LinearProduct& p, bool norm) {
  std::vector<LinearChoice> found;
  for (const int stages : {8, 6, 5, 4, 3})
    if (found.size() < 2 && skinny_fits(p, stages, norm))
      found.push_back({.kernel = LinearChoice::Kernel::skinny, .stages = stages});
  return found;
}

std::vector<LinearChoice> candidates(const LinearProduct& p, int device) {
  std::vector<LinearChoice> all = skinny_candidates(p);
  if (channels_fit(p)) all.push_back({.kernel = LinearChoice::Kernel::channels});
  if (p.rows > kSkinnyUpTo) std::ranges::copy(tiled_candidates(p, device), std::back_inserter(all));
  std::ranges::copy(library_candidates(p, device, kLibraryCandidates), std::back_inserter(all));
  return all;
}

LinearChoice default_choice(const LinearProduct& p, int device) {
  const auto ours = skinny_candidates(p);
  if (!ours.empty() && p.rows <= kSkinnyUpTo) return ours.front();
  if (channels_fit(p) && p.rows <= kSkinnyUpTo) return {.kernel = LinearChoice::Kernel::channels};
  const auto theirs = library_candidates(p, device, 1);
  if (theirs.empty())
    throw Error::make(ErrorKind::device, Device{Device::Kind::cuda, device}.name(),
                      "cuBLASLt {} has no algorithm for {} rows and weights [{}, {}] in {}",
                      cublaslt::version(), p.rows, p.out, p.in, dtype_name(p.dtype));
  return theirs.front();
}

bool usable(const LinearChoice& c, const LinearProduct& p, int device) {
  switch (c.kernel) {
    case LinearChoice::Kernel::skinny:
      return skinny_fits(p, c.stages);
    case LinearChoice::Kernel::tiled:
      return tiled_fits(p, c.tiling);
    case LinearChoice::Kernel::channels:
      return channels_fit(p);
    case LinearChoice::Kernel::library:
      break;
  }
  return cublaslt::can_run(device, library_product(p), c.algorithm, kWorkspaceBytes);
}

void run_skinny(int stages, const LinearProduct& p, const Operands& at, const CudaLinear& w,
                const LinearFusion& fusion, Stream stream) {
  cuda_table().skinny_linear({.y = at.y.raw(),
                              .x = at.x.raw(),
                              .w = reinterpret_cast<const bf16*>(w.weights),
                              .bias = w.bias,
                              .norm_weight = fusion.norm_weight,
                              .norm_eps = fusion.norm_eps,
                              .rows = static_cast<int>(p.rows),
                              .out = static_cast<int>(p.out),
                              .in = static_cast<int>(p.in),
                              .y_type = p.y_type,
                              .accumulate = p.accumulate,
                              .gated = p.gate.has_value(),
                              .gate = p.gate.value_or(Gate::silu),
                              .stages = stages},
                             stream);
  cuda::launched("skinny_linear", stream);
}

void run_choice(const LinearChoice& c, const LinearProduct& p, const Operands& at,
                const CudaLinear& w, Stream stream) {
  const bool ours = c.kernel != LinearChoice::Kernel::library;
  TANDEM_CHECK(!ours || reinterpret_cast<uintptr_t>(at.x.raw()) % 16 == 0,
               "{}: the input is not aligned to 16 bytes", w.spec.name);
  switch (c.kernel) {
    case LinearChoice::Kernel::skinny:
      return run_skinny(c.stages, p, at, w, {}, stream);
    case LinearChoice::Kernel::tiled:
      run_tiled(c, p, at, w, stream);
      return cuda::launched("tiled_linear", stream);
    case LinearChoice::Kernel::channels:
      return run_channels(p, at, w, stream);
    case LinearChoice::Kernel::library:
      return run_library(c, p, at, w, stream);
  }
}

double measure(int64_t rows, int64_t out, int64_t in, DType dtype,
               const std::function<void(size_t i)>& run, cuda::Queue& queue) {
  // Enough products for half a millisecond at the rates of an H200; the median of five.
  constexpr double kSpan = 500, kBytesPerMicrosecond = 4e6, kFlopsPerMicrosecond = 6e8,
                   kOverhead = 2;
  constexpr int kRepeats = 5;
  const double weights = static_cast<double>(out * in);
  const double expected =
      kOverhead + std::max(weights * static_cast<double>(dtype_bytes(dtype)) / kBytesPerMicrosecond,
                           2 * weights * static_cast<double>(rows) / kFlopsPerMicrosecond);
  const int n = static_cast<int>(std::clamp(kSpan / expected, 2.0, 32.0));
  const cuda::Graph graph(queue, [&] {
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) run(i);
  });
  cuda::Event begin(true), end(true);
  std::array<float, kRepeats + 1> ms{};
  for (float& t : ms) {
    begin.record(queue);
    graph.launch(queue);
    end.record(queue);
    end.wait();
    t = end.ms_since(begin);
  }
  std::sort(ms.begin() + 1, ms.end());  // the first one warms up
  return double{ms[1 + kRepeats / 2]} * 1e3 / n;
}

double measure(const LinearChoice& c, const LinearProduct& p, const Operands& at,
               std::span<CudaLinear* const> alike, const LinearNeighbours& around,
               cuda::Queue& queue) {
  return measure(
      p.rows, p.out, p.in, p.dtype,
      [&](size_t i) {
        const size_t k = i % alike.size();
        if (around.before) around.before(k, queue.stream());
        run_choice(c, p, at, *alike[k], queue.stream());
        if (around.after) around.after(k, queue.stream());
      },
      queue);
}

}  // namespace tandem::ops::linear_cuda
