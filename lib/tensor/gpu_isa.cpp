#include "tensor/gpu_isa.h"

#include <array>
#include <cstdlib>

#include "base/error.h"
#include "tensor/cuda.h"

namespace tandem::cuda {
namespace {

constexpr std::array kNames = {"portable", "hopper"};

}  // namespace

const char* gpu_isa_name(GpuIsa isa) { return kNames[static_cast<size_t>(isa)]; }

void force_gpu_isa(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return use_gpu_isa(static_cast<GpuIsa>(i));
  throw usage_error("TANDEM_GPU_ISA", "unknown instruction set '{}'", name)
      .hint("one of: portable, hopper");
}

void force_gpu_isa_by_environment() {
  const char* name = std::getenv("TANDEM_GPU_ISA");
  if (name != nullptr && *name != '\0') force_gpu_isa(name);
}

}  // namespace tandem::cuda
