#include "ops/linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/cpu_features.h"
#include "ops/elementwise.h"
#include "ops/linear_device.h"

namespace tandem::ops {
namespace {

bool on_gpu(Device d) { return d.kind == Device::Kind::cuda; }

/// Kernels of up to this many rows are chosen for each number of rows.
constexpr int64_t kExactRows = 16;

void check_operands(const Tensor& y, const Tensor& x, const PackedWeights::Spec& spec,
                    bool accumulate) {
  TANDEM_CHECK(x.dtype() == spec.input && x.row_size() == spec.in,
               "{}: unexpected input {} [{}, {}]", spec.name, dtype_name(x.dtype()), x.rows(),
               x.row_size());
  TANDEM_CHECK(y.rows() == x.rows() && y.row_size() == spec.out, "{}: unexpected output [{}, {}]",
               spec.name, y.rows(), y.row_size());
  TANDEM_CHECK(y.dtype() == DType::f32 || y.dtype() == DType::bf16,
               "{}: unexpected output dtype {}", spec.name, dtype_name(y.dtype()));
  TANDEM_CHECK(!accumulate || y.dtype() == DType::f32, "{}: accumulation needs an f32 output",
               spec.name);
}

void check_gated(const Tensor& y, const Tensor& gate_up, const Tensor& x,
                 const PackedWeights::Spec& spec) {
  check_operands(gate_up, x, spec, false);
  TANDEM_CHECK(y.rows() == x.rows() && y.row_size() * 2 == spec.out && y.dtype() == gate_up.dtype(),
               "{}: unexpected gated output {} [{}, {}]", spec.name, dtype_name(y.dtype()),
               y.rows(), y.row_size());
}

void check_source(const PackedWeights::Spec& spec, std::span<const float> bias,
                  const Staging& staging) {
  TANDEM_CHECK(bias.size() == (spec.bias ? static_cast<size_t>(spec.out) : 0),
               "unexpected number of biases: {}", bias.size());
  TANDEM_CHECK(on_gpu(spec.device) == (staging.ring() != nullptr),
               "{}: the staging buffer belongs to another device", spec.name);
}

/// Weights on a GPU that are numbers.
std::vector<CudaLinear*> on_device(std::span<const PackedWeights* const> all) {
  std::vector<CudaLinear*> found;
  for (const PackedWeights* w : all)
    if (w->state().cuda && !w->state().spec.has_codes()) found.push_back(w->state().cuda.get());
  return found;
}

}  // namespace

void check_taken(const PackedWeights::Spec& spec, bool taken) {
  if (taken) return;
  const std::string isa = on_gpu(spec.device) ? "" : fmt::format(" ({})", isa_name(isa_in_use()));
  throw make_error(ErrorKind::device, spec.device.name() + isa,
                   "no product multiplies {} weights by {} inputs, as {} needs",
                   format_name(spec.stored), dtype_name(spec.input), spec.name)
      .hint("store the weights in bf16 or f32, whichever their inputs are");
}

WeightFormat PackedWeights::Spec::format_at(int64_t row) const {
  for (const Stacked& part : stacked) {
    if (row < part.rows) return part.stored;
    row -= part.rows;
  }
  return stored;
}

std::vector<PackedWeights::Spec::Stacked> PackedWeights::Spec::stacks() const {
  return stacked.empty() ? std::vector<Stacked>{{out, stored}} : stacked;
}

bool PackedWeights::Spec::has_codes() const {
  return std::ranges::any_of(stacks(), [](const Stacked& s) { return is_coded(s.stored); });
}

void PackedWeights::plan(const Spec& spec, MemoryPlan& plan) {
  if (on_gpu(spec.device))
    plan.add(spec.name, device_bytes(spec), spec.device);
  else
    linear_cpu::plan(spec, plan);
}

size_t PackedWeights::staging_bytes(const Spec& spec) {
  return on_gpu(spec.device) ? linear_cuda::staging_bytes(spec) : linear_cpu::staging_bytes(spec);
}

size_t PackedWeights::workspace_bytes(const Spec& spec, int64_t max_rows) {
  return on_gpu(spec.device) ? linear_cuda::workspace_bytes(spec, max_rows)
                             : linear_cpu::workspace_bytes(spec, max_rows);
}

void PackedWeights::load(const Spec& spec, Arena& arena, const RowSource& rows,
                         std::span<const float> bias, Staging& staging,
                         const DeviceRowSource& device_rows, const Unquantized& numbers) {
  if (on_gpu(spec.device))
    return load(spec, arena.take(spec.name), rows, bias, staging, device_rows, numbers);
  check_source(spec, bias, staging);
  state_ = std::make_shared<State>(State{.spec = spec, .cpu = nullptr, .cuda = nullptr});
  state_->cpu = linear_cpu::load(spec, arena, rows, bias, staging.memory());
}

void PackedWeights::load(const Spec& spec, void* memory, const RowSource& rows,
                         std::span<const float> bias, Staging& staging,
                         const DeviceRowSource& device_rows, const Unquantized& numbers) {
  TANDEM_CHECK(on_gpu(spec.device), "{}: weights are on the CPU, but GPU memory was given",
               spec.name);
  check_source(spec, bias, staging);
  state_ = std::make_shared<State>(State{.spec = spec, .cpu = nullptr, .cuda = nullptr});
  state_->cuda = linear_cuda::load(spec, static_cast<std::byte*>(memory), rows, bias,
                                   *staging.ring(), device_rows, numbers);
}

size_t PackedWeights::device_bytes(const Spec& spec) { return linear_cuda::bytes(spec); }

PackedWeights PackedWeights::moved(ptrdiff_t bytes) const {
  TANDEM_CHECK(state_->cuda != nullptr, "{}: weights on the CPU cannot be moved",
               state_->spec.name);
  PackedWeights to;
  to.state_ = std::make_shared<State>(State{.spec = state_->spec, .cpu = nullptr, .cuda = nullptr});
  to.state_->cuda = linear_cuda::moved(*state_->cuda, bytes);
  return to;
}

void* PackedWeights::device_rows() const {
  return state_->cuda && !state_->spec.by_input ? linear_cuda::rows(*state_->cuda) : nullptr;
}
const CodeTiles* PackedWeights::device_codes() const {
  return state_->cuda ? linear_cuda::codes(*state_->cuda) : nullptr;
}
const void* PackedWeights::input_rows() const {
  if (!state_->spec.by_input) return nullptr;
  return state_->cuda ? linear_cuda::rows(*state_->cuda) : linear_cpu::input_rows(*state_->cpu);
}
float* PackedWeights::bias() const {
  return state_->cuda ? linear_cuda::bias(*state_->cuda) : linear_cpu::bias(*state_->cpu);
}
int64_t PackedWeights::out() const { return state_->spec.out; }
int64_t PackedWeights::in() const { return state_->spec.in; }
DType PackedWeights::dtype() const { return numbers_of(state_->spec.stored); }
DType PackedWeights::input() const { return state_->spec.input; }
Device PackedWeights::device() const { return state_->spec.device; }

size_t PackedWeights::row_bytes() const { return tandem::row_bytes(state_->spec.stored, in()); }
size_t PackedWeights::bytes() const {
  size_t sum = 0;
  for (const Spec::Stacked& part : state_->spec.stacks())
    sum += matrix_bytes(part.stored, part.rows, in());
  return sum;
}

bool multiplies_codes(const WeightFormat& stored, DType input, Device device) {
  return !on_gpu(device) || linear_cuda::takes_codes(stored, input);
}

Staging::Staging(Device device, void* memory, size_t bytes)
    : memory_(memory),
      ring_(on_gpu(device) ? linear_cuda::make_ring(device, memory, bytes) : nullptr) {}

Staging::~Staging() = default;

void Staging::wait() {
  if (ring_) linear_cuda::wait(*ring_);
}

void linear(const Tensor& y, const Tensor& x, const PackedWeights& w, Accumulate accumulate,
            std::span<std::byte> workspace, Stream stream) {
  PackedWeights::State& s = w.state();
  const bool add = accumulate == Accumulate::yes;
  check_operands(y, x, s.spec, add);
  if (x.rows() == 0) return;
  const Operands at{.y = y, .x = x, .gate_up = {}, .workspace = workspace};
  if (s.cuda)
    linear_cuda::run(at, *s.cuda, add, {}, stream);
  else
    linear_cpu::run(at, *s.cpu, add);
}

void linear_gated(const Tensor& y, const Tensor& gate_up, const Tensor& x, const PackedWeights& w,
                  Gate gate, std::span<std::byte> workspace, Stream stream) {
  PackedWeights::State& s = w.state();
  check_gated(y, gate_up, x, s.spec);
  if (x.rows() == 0) return;
  if (s.cuda && is_fused(gate))
    return linear_cuda::run({.y = y, .x = x, .gate_up = gate_up, .workspace = workspace}, *s.cuda,
                            false, gate, stream);
  linear(gate_up, x, w, Accumulate::no, workspace, stream);
  gate_mul(y, gate_up, gate, stream);
}

bool can_fuse(const PackedWeights& w, int64_t rows, const LinearFusion& fusion) {
  return w.state().cuda && is_fused(fusion.gate.value_or(Gate::silu)) &&
         linear_cuda::can_fuse(*w.state().cuda, rows, fusion.norm_weight != nullptr,
                               fusion.gate.has_value());
}

bool fusion_pays(const PackedWeights& w, int64_t rows, const LinearFusion& fusion) {
  return w.state().cuda && is_fused(fusion.gate.value_or(Gate::silu)) &&
         linear_cuda::fusion_pays(*w.state().cuda, rows, fusion.norm_weight != nullptr,
                                  fusion.gate);
}

void linear_fused(const Tensor& y, const Tensor& x, const LinearFusion& fusion,
                  const PackedWeights& w, Accumulate accumulate, Stream stream) {
  const PackedWeights::Spec& s = w.state().spec;
  const bool add = accumulate == Accumulate::yes;
  TANDEM_CHECK(can_fuse(w, x.rows(), fusion), "{}: {} rows cannot be fused", s.name, x.rows());
  TANDEM_CHECK(x.dtype() == (fusion.norm_weight ? DType::f32 : s.input) && x.row_size() == s.in,
               "{}: unexpected input {} [{}, {}]", s.name, dtype_name(x.dtype()), x.rows(),
               x.row_size());
  TANDEM_CHECK(y.rows() == x.rows() && y.row_size() * (fusion.gate ? 2 : 1) == s.out,
               "{}: unexpected output [{}, {}]", s.name, y.rows(), y.row_size());
  TANDEM_CHECK(!add || (y.dtype() == DType::f32 && !fusion.gate),
               "{}: accumulation needs an f32 output", s.name);
  linear_cuda::run_fused(y, x, fusion, *w.state().cuda, add, stream);
}

void tune_linear(const Tensor& y, const Tensor& x, std::span<const PackedWeights* const> all,
                 Accumulate accumulate, const LinearNeighbours& around,
                 std::span<std::byte> workspace, Stream stream) {
  const bool add = accumulate == Accumulate::yes;
  for (const PackedWeights* w : all) check_operands(y, x, w->state().spec, add);
  const std::vector<CudaLinear*> weights = on_device(all);
  if (x.rows() == 0) return;
  const Operands at{.y = y, .x = x, .gate_up = {}, .workspace = workspace};
  if (!weights.empty()) linear_cuda::tune(at, weights, add, {}, around, stream);
  const auto trained = std::ranges::find_if(all, [](const PackedWeights* w) {
    return w->state().cuda && w->state().spec.trainable && w->state().spec.has_codes();
  });
  if (trained != all.end()) linear_cuda::tune_codes(at, *(*trained)->state().cuda, add, stream);
}

void tune_gated(const Tensor& y, const Tensor& gate_up, const Tensor& x,
                std::span<const PackedWeights* const> alike, Gate gate,
                const LinearNeighbours& around, std::span<std::byte> workspace, Stream stream) {
  for (const PackedWeights* w : alike) check_gated(y, gate_up, x, w->state().spec);
  const std::vector<CudaLinear*> weights = on_device(alike);
  const bool fused = is_fused(gate);
  if (!weights.empty() && x.rows() > 0)
    linear_cuda::tune({.y = fused ? y : gate_up,
                       .x = x,
                       .gate_up = fused ? gate_up : Tensor{},
                       .workspace = workspace},
                      weights, false, fused ? std::optional(gate) : std::nullopt, around, stream);
}

void forget_linear_choices() { linear_cuda::forget_choices(); }

bool warm_up_linear(DType dtype, Device device) {
  return on_gpu(device) ? linear_cuda::warm_up(dtype, device.index) : linear_cpu::warm_up(dtype);
}

}  // namespace tandem::ops
