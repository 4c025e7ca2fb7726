#include "kernels/cuda_table.h"

namespace tandem {
namespace {

// Bodies that a build without machine code for sm_90a leaves out.
#ifdef TANDEM_HAS_HOPPER
#define TANDEM_HOPPER(body) hopper::body
#else
#define TANDEM_HOPPER(body) nullptr
#endif

constexpr cuda::ByLibrary kCublasLt{"cuBLASLt"};

bool never_fits(const TiledLinearParams&) { return false; }

#define TANDEM_ONE(op) .op = {op##_cuda},
#define TANDEM_TWO(op) .op = {portable::op##_cuda, TANDEM_HOPPER(op##_cuda)},

constexpr CudaTable kTable{
    .skinny_linear_fits = {portable::skinny_linear_fits, TANDEM_HOPPER(skinny_linear_fits)},
    .coded_linear_fits = {portable::coded_linear_fits, TANDEM_HOPPER(coded_linear_fits)},
    .quantize_tiles_fits = {quantize_tiles_fits},
    .tiled_linear = {kCublasLt, TANDEM_HOPPER(tiled_linear_cuda)},
    .tiled_linear_fits = {never_fits, TANDEM_HOPPER(tiled_linear_fits)},
    TANDEM_CUDA_OPERATIONS(TANDEM_ONE, TANDEM_TWO)};

}  // namespace

const CudaTable& cuda_table() { return kTable; }

}  // namespace tandem
