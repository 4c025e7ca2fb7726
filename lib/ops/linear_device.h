#pragma once
// The two places where dense layers run; linear.cpp chooses between them by the weights' device.
// Shapes and dtypes have been checked there.
#include "kernels/channels/weight_part.h"
#include "ops/linear.h"

namespace tandem::ops {

struct CpuLinear;
struct CudaLinear;
class FrozenCodes;

/// One of the two is set.
struct PackedWeights::State {
  Spec spec;
  std::shared_ptr<CpuLinear> cpu;
  std::shared_ptr<CudaLinear> cuda;
};

/// Operands of a product, in the memory of the weights.
struct Operands {
  Tensor y, x;
  Tensor gate_up;  // with a gate: scratch [rows, out] in y's dtype
  std::span<std::byte> workspace;
};

/// Says that a product multiplies weights so stored by inputs of that type.
using TakesFormat = bool(const WeightFormat& stored, DType input);
template <DType T>
bool takes_numbers(const WeightFormat& stored, DType input) {
  return stored == T && input == T;
}

/// errors   kind device where no product takes the format
void check_taken(const PackedWeights::Spec& spec, bool taken);

/// Returns the weights' codes for kernels that also take numbers: without data if there are none.
inline CodeTiles codes_or_none(const PackedWeights& w) {
  return w.device_codes() != nullptr ? *w.device_codes() : CodeTiles{};
}

// Dense layers of many rows by oneDNN, which linear_cpu.cpp chooses where the CPU multiplies bf16.
/// Weights in panels of pairs (kernels/linear/decode_linear.h), and the products made so far.
struct OneDnnLinear;

namespace linear_onednn {

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows);
/// `weights`: the panels; `bias` [out], null without one. Both are kept.
std::shared_ptr<OneDnnLinear> make(const PackedWeights::Spec& spec, bf16* weights, float* bias);
void run(const Tensor& y, const Tensor& x, OneDnnLinear& w, bool accumulate,
         std::span<std::byte> workspace);

}  // namespace linear_onednn

namespace linear_cpu {

void plan(const PackedWeights::Spec& spec, MemoryPlan& plan);
size_t staging_bytes(const PackedWeights::Spec& spec);
size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows);
std::shared_ptr<CpuLinear> load(const PackedWeights::Spec& spec, Arena& arena,
                                const PackedWeights::RowSource& rows, std::span<const float> bias,
                                void* staging);
void run(const Operands& at, CpuLinear& w, bool accumulate);
bool warm_up(DType dtype);
/// [out, in] of trainable weights, which pack_rows packs again; null of others.
void* rows(const CpuLinear& w);
/// [in, out] of weights by input; null of others.
void* input_rows(const CpuLinear& w);
float* bias(const CpuLinear& w);
/// Trainable codes; null of others.
FrozenCodes* codes(const CpuLinear& w);
/// Packs the rows again of steps in which changed(begin, end) says that any has changed.
void pack_rows(CpuLinear& w, const std::function<bool(int64_t begin, int64_t end)>& changed);

}  // namespace linear_cpu

namespace linear_cuda {

/// Rows of one format, of codes as tiles.
struct Part {
  int64_t first = 0;  // output
  WeightFormat stored = DType::bf16;
  size_t at = 0;  // the first byte of its numbers or codes
  CodeTiles tiles = {};
};
/// Where the parts of a layer's device memory begin.
struct Places {
  std::vector<Part> parts;
  size_t bias = 0, rounded_bias = 0, end = 0;
  explicit Places(const PackedWeights::Spec& spec);
};
/// The memory of products whose inputs are rounded to fp8, in the order in which it lies.
struct RoundedBytes {
  size_t codes, x_scales, w_scales;
  RoundedBytes(const PackedWeights::Spec& spec, int64_t rows);
  size_t all() const { return codes + x_scales + w_scales; }
};
/// True if inputs of a part's products can be rounded to fp8: fp8 codes with a scale a row or 128
/// inputs, sizes in sixteens.
bool can_round(const Part& part);
/// Buffers of the ring that weights are staged in: one is filled while another is copied; the third
/// takes up what varies.
inline constexpr size_t kStagingSlots = 3;
/// What cuBLASLt's own guide gives Hopper GPUs.
inline constexpr size_t kWorkspaceBytes = size_t{32} << 20;
/// Codes are widened in panels of this size, which a large L2 cache holds, for products of many
/// rows.
inline constexpr size_t kPanelBytes = size_t{32} << 20;
/// Training widens panels of this size. Products of a few thousand rows with large panels cost
/// less than reading them from L2 saves.
inline constexpr size_t kTrainedPanelBytes = size_t{128} << 20;

// Builds without CUDA have the same code for these: a plan needs no GPU.
TakesFormat takes_any;
/// True for codes that a GPU multiplies. fp8 needs f32 scales in groups of multiples of 128 or
/// whole rows. Codes of i4 and i8 need f16 or bf16 scales, also in groups of 16, 32 and 64. Scales
/// of two levels become f16.
TakesFormat takes_codes;
size_t bytes(const PackedWeights::Spec& spec);
size_t staging_bytes(const PackedWeights::Spec& spec);
size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows);

std::shared_ptr<Staging::Ring> make_ring(Device device, void* memory, size_t bytes);
void wait(Staging::Ring& ring);
std::shared_ptr<CudaLinear> load(const PackedWeights::Spec& spec, std::byte* memory,
                                 const PackedWeights::RowSource& rows, std::span<const float> bias,
                                 Staging::Ring& ring,
                                 const PackedWeights::DeviceRowSource& device_rows,
                                 const PackedWeights::Unquantized& numbers);
std::shared_ptr<CudaLinear> moved(const CudaLinear& w, ptrdiff_t bytes);
void run(const Operands& at, CudaLinear& w, bool accumulate, std::optional<Gate> gate,
         Stream stream);
/// [out, in]; of weights by input [in, out].
void* rows(const CudaLinear& w);
const CodeTiles* codes(const CudaLinear& w);
float* bias(const CudaLinear& w);
void* rounded_bias(const CudaLinear& w);
/// Trainable codes: as FrozenCodes::hold and input_gradient.
void hold(CudaLinear& w, WeightPart part, std::span<const int32_t> index, void* values,
          Stream stream);
/// Values of the held part.
bf16* held(const CudaLinear& w, WeightPart part);
void input_gradient(const Tensor& dx, const Tensor& dy, const CudaLinear& w, bool accumulate,
                    std::span<std::byte> workspace, Stream stream);
void tune_input_gradient(const Tensor& dx, const Tensor& dy, const CudaLinear& w,
                         std::span<std::byte> workspace, Stream stream);
/// Visits rows of codes like ops::each_rows.
void each_rows(const CudaLinear& w, int64_t first, int64_t n, std::span<std::byte> workspace,
               Stream stream,
               const std::function<void(int64_t, const Tensor&, std::span<std::byte>)>& visit);
bool can_fuse(const CudaLinear& w, int64_t rows, bool norm, bool gated);
bool fusion_pays(CudaLinear& w, int64_t rows, bool norm, std::optional<Gate> gate);
void run_fused(const Tensor& y, const Tensor& x, const LinearFusion& fusion, CudaLinear& w,
               bool accumulate, Stream stream);
void tune(const Operands& at, std::span<CudaLinear* const> alike, bool accumulate,
          std::optional<Gate> gate, const LinearNeighbours& around, Stream stream);
/// Chooses how the products of widened codes run.
void tune_codes(const Operands& at, const CudaLinear& w, bool accumulate, Stream stream);
void forget_choices();
bool warm_up(DType dtype, int device);

}  // namespace linear_cuda

}  // namespace tandem::ops
