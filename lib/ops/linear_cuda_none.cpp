// A build without CUDA: no GPU is ever found, so no weights are there.
#include "base/error.h"
#include "ops/linear_device.h"
#include "ops/matmul_cuda.h"
#include "tensor/cuda.h"

namespace tandem::ops {

struct Staging::Ring {};

namespace linear_cuda {
namespace {

[[noreturn]] void fail() { throw Error(ErrorKind::device, "cuda", cuda::why_none()); }

}  // namespace

std::shared_ptr<Staging::Ring> make_ring(Device, void*, size_t) { fail(); }
void wait(Staging::Ring&) { fail(); }
std::shared_ptr<CudaLinear> load(const PackedWeights::Spec&, std::byte*,
                                 const PackedWeights::RowSource&, std::span<const float>,
                                 Staging::Ring&, const PackedWeights::DeviceRowSource&,
                                 const PackedWeights::Unquantized&) {
  fail();
}
std::shared_ptr<CudaLinear> moved(const CudaLinear&, ptrdiff_t) { fail(); }
void run(const Operands&, CudaLinear&, bool, std::optional<Gate>, Stream) { fail(); }
void tune(const Operands&, std::span<CudaLinear* const>, bool, std::optional<Gate>,
          const LinearNeighbours&, Stream) {
  fail();
}
void tune_codes(const Operands&, const CudaLinear&, bool, Stream) { fail(); }
void* rows(const CudaLinear&) { return nullptr; }
const CodeTiles* codes(const CudaLinear&) { return nullptr; }
float* bias(const CudaLinear&) { return nullptr; }
void* rounded_bias(const CudaLinear&) { return nullptr; }
void hold(CudaLinear&, WeightPart, std::span<const int32_t>, void*, Stream) { fail(); }
bf16* held(const CudaLinear&, WeightPart) { return nullptr; }
void input_gradient(const Tensor&, const Tensor&, const CudaLinear&, bool, std::span<std::byte>,
                    Stream) {
  fail();
}
void tune_input_gradient(const Tensor&, const Tensor&, const CudaLinear&, std::span<std::byte>,
                         Stream) {
  fail();
}
void each_rows(const CudaLinear&, int64_t, int64_t, std::span<std::byte>, Stream,
               const std::function<void(int64_t, const Tensor&, std::span<std::byte>)>&) {
  fail();
}
bool can_fuse(const CudaLinear&, int64_t, bool, bool) { return false; }
bool fusion_pays(CudaLinear&, int64_t, bool, std::optional<Gate>) { return false; }
void run_fused(const Tensor&, const Tensor&, const LinearFusion&, CudaLinear&, bool, Stream) {
  fail();
}
void forget_choices() {}
bool warm_up(DType, int) { fail(); }

}  // namespace linear_cuda

namespace matmul_cuda {

void run(const MatmulArgs&, std::span<std::byte>, Stream) { linear_cuda::fail(); }
void tune(const MatmulArgs&, std::span<std::byte>, Stream) { linear_cuda::fail(); }

}  // namespace matmul_cuda

}  // namespace tandem::ops
