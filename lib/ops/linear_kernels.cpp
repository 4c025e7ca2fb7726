#include "ops/linear_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "ops/cublaslt.h"
#include "ops/elementwise.h"
#include "ops/operation.h"

namespace tandem::ops::linear_cuda {
namespace {

// To be raised when a kernel changes so that other choices may be the fastest.
constexpr int kSkinnyRevision = 1, kTiledRevision = 2;

/// A kernel that products run on.
struct CudaBody {
  LinearChoice::Kernel kernel;
  TakesFormat* takes;
  int64_t most_rows;
  int64_t best_up_to;  // rows up to which it is the best as a rule
  std::vector<LinearChoice> (*choices)(const LinearProduct&, int device, int most);
  bool (*fits)(const LinearChoice&, const LinearProduct&, int device);
  void (*run)(const LinearChoice&, const LinearProduct&, const Operands&, const CudaLinear&,
              Stream);

  bool serves(const LinearProduct& p) const {
    return takes(p.stored, p.input) && p.rows <= most_rows;
  }
};
const CudaBody& body_of(LinearChoice::Kernel kernel);

bool skinny_fits(const LinearProduct& p, int stages, bool norm = false) {
  return !p.by_input && cuda_table().skinny_linear_fits(
                            {static_cast<int>(p.rows), static_cast<int>(p.in), stages, norm});
}

bool channels_fit(const LinearChoice&, const LinearProduct& p, int) {
  return p.by_input && p.accumulate && p.y_type == DType::f32;
}

std::vector<LinearChoice> channels_choices(const LinearProduct& p, int device, int) {
  const LinearChoice all{.kernel = LinearChoice::Kernel::channels};
  return std::vector<LinearChoice>(channels_fit(all, p, device) ? 1 : 0, all);
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

bool tiled_fits(const LinearChoice& c, const LinearProduct& p, int) {
  return !p.by_input && cuda_table().tiled_linear_fits(tiled_params(p, c.tiling));
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

std::vector<LinearChoice> tiled_choices(const LinearProduct& p, int device, int) {
  constexpr size_t kMost = 10;
  if (p.rows <= kSkinnyUpTo) return {};
  const int multiprocessors = cuda::device_info(device).multiprocessors;
  std::vector<std::pair<double, LinearChoice>> found;
  for (const int groups : {1, 2, 3, 4})
    for (const int parts : {1, 2, 3, 4, 6, 8})
      for (const int blocks : {1, 2, 3}) {
        const LinearChoice c{.kernel = LinearChoice::Kernel::tiled,
                             .tiling = {groups, parts, blocks}};
        if (tiled_fits(c, p, device))
          found.emplace_back(suitability(p, c.tiling, multiprocessors), c);
      }
  std::ranges::stable_sort(found, std::greater{}, [](const auto& f) { return f.first; });
  std::vector<LinearChoice> best;
  for (const auto& [suits, choice] : found)
    if (best.size() < kMost) best.push_back(choice);
  return best;
}

/// y [rows, out] = x [rows, in] W^T; buffers are aligned well.
cublaslt::Product library_product(const LinearProduct& p) {
  const uint32_t of_in = cublaslt::alignment(p.in, p.input);
  const int64_t of_weights = p.by_input ? p.out : p.in;
  return {.m = p.rows,
          .n = p.out,
          .k = p.in,
          .a_stride = p.in,
          .b_stride = of_weights,
          .c_stride = p.out,
          .b_transposed = !p.by_input,
          .type = p.input,
          .c_type = p.y_type,
          .accumulate = p.accumulate,
          .bias = p.bias,
          .a_alignment = of_in,
          .b_alignment = cublaslt::alignment(of_weights, p.input),
          .c_alignment = cublaslt::alignment(p.out, p.y_type)};
}

std::vector<LinearChoice> library_choices(const LinearProduct& p, int device, int most) {
  std::vector<LinearChoice> found;
  for (const auto& a : cublaslt::candidates(device, library_product(p), kWorkspaceBytes, most))
    found.push_back({.algorithm = a});
  return found;
}

bool library_fits(const LinearChoice& c, const LinearProduct& p, int device) {
  return cublaslt::can_run(device, library_product(p), c.algorithm, kWorkspaceBytes);
}

void run_tiled(const LinearChoice& c, const LinearProduct& p, const Operands& at,
               const CudaLinear& w, Stream stream) {
  TiledLinearParams params = tiled_params(p, c.tiling);
  params.y = at.y.raw();
  params.x = at.x.as<bf16>();
  params.w = reinterpret_cast<const bf16*>(w.weights);
  params.bias = w.bias;
  launch(TANDEM_KERNEL(tiled_linear), params, stream);
}

/// y += x W^T + b by input.
void run_channels(const LinearChoice&, const LinearProduct& p, const Operands& at,
                  const CudaLinear& w, Stream stream) {
  launch(TANDEM_KERNEL(down_channels),
         {.out = at.y.as<float>(),
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
          .type = numbers_of(p.stored)},
         stream);
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

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
using Kernel = LinearChoice::Kernel;

/// In the order in which they are preferred as a rule, and measured.
constexpr CudaBody kBodies[] = {
    {Kernel::skinny, takes_numbers<DType::bf16>, kSkinnyRows, kSkinnyUpTo,
     [](const LinearProduct& p, int, int) { return skinny_candidates(p); },
     [](const LinearChoice& c, const LinearProduct& p, int) { return skinny_fits(p, c.stages); },
     [](const LinearChoice& c, const LinearProduct& p, const Operands& at, const CudaLinear& w,
        Stream stream) { run_skinny(c.stages, p, at, w, {}, stream); }},
    {Kernel::channels, takes_any, kListedRows, kSkinnyUpTo, channels_choices, channels_fit,
     run_channels},
    {Kernel::tiled, takes_numbers<DType::bf16>, kTiledRows, 0, tiled_choices, tiled_fits,
     run_tiled},
    {Kernel::library, takes_any, kAll, kAll, library_choices, library_fits, run_library}};

const CudaBody& body_of(Kernel kernel) {
  return *std::ranges::find(kBodies, kernel, &CudaBody::kernel);
}

}  // namespace

std::string kernel_versions() {
  return fmt::format("cuBLASLt {}, skinny_linear {}, tiled_linear {}", cublaslt::version(),
                     kSkinnyRevision, kTiledRevision);
}

std::vector<LinearChoice> skinny_candidates(const LinearProduct& p, bool norm) {
  std::vector<LinearChoice> found;
  if (!body_of(Kernel::skinny).serves(p)) return found;
  for (const int stages : {8, 6, 5, 4, 3})
    if (found.size() < 2 && skinny_fits(p, stages, norm))
      found.push_back({.kernel = Kernel::skinny, .stages = stages});
  return found;
}

std::vector<LinearChoice> candidates(const LinearProduct& p, int device) {
  constexpr int kMost = 12;
  std::vector<LinearChoice> all;
  for (const CudaBody& b : kBodies)
    if (b.serves(p)) std::ranges::copy(b.choices(p, device, kMost), std::back_inserter(all));
  return all;
}

LinearChoice default_choice(const LinearProduct& p, int device) {
  for (const CudaBody& b : kBodies)
    if (b.serves(p) && p.rows <= b.best_up_to)
      if (const auto found = b.choices(p, device, 1); !found.empty()) return found.front();
  throw make_error(ErrorKind::device, Device{Device::Kind::cuda, device}.name(),
                   "cuBLASLt {} has no algorithm for {} rows and weights [{}, {}] in {}",
                   cublaslt::version(), p.rows, p.out, p.in, format_name(p.stored));
}

bool usable(const LinearChoice& c, const LinearProduct& p, int device) {
  const CudaBody& body = body_of(c.kernel);
  return body.serves(p) && body.fits(c, p, device);
}

void run_skinny(int stages, const LinearProduct& p, const Operands& at, const CudaLinear& w,
                const LinearFusion& fusion, Stream stream) {
  launch(TANDEM_KERNEL(skinny_linear),
         {.y = at.y.raw(),
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
}

void run_choice(const LinearChoice& c, const LinearProduct& p, const Operands& at,
                const CudaLinear& w, Stream stream) {
  TANDEM_CHECK(c.kernel == Kernel::library || reinterpret_cast<uintptr_t>(at.x.raw()) % 16 == 0,
               "{}: the input is not aligned to 16 bytes", w.spec.name);
  body_of(c.kernel).run(c, p, at, w, stream);
}

double measure(size_t weight_bytes, double flops, const std::function<void(size_t i)>& run,
               cuda::Queue& queue) {
  // Enough products for half a millisecond at the rates of an H200; the median of five.
  constexpr double kSpan = 500, kBytesPerMicrosecond = 4e6, kFlopsPerMicrosecond = 6e8,
                   kOverhead = 2;
  constexpr int kRepeats = 5;
  const double expected =
      kOverhead + std::max(static_cast<double>(weight_bytes) / kBytesPerMicrosecond,
                           flops / kFlopsPerMicrosecond);
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
      matrix_bytes(p.stored, p.out, p.in), 2.0 * static_cast<double>(p.rows * p.out * p.in),
      [&](size_t i) {
        const size_t k = i % alike.size();
        if (around.before) around.before(k, queue.stream());
        run_choice(c, p, at, *alike[k], queue.stream());
        if (around.after) around.after(k, queue.stream());
      },
      queue);
}

}  // namespace tandem::ops::linear_cuda
