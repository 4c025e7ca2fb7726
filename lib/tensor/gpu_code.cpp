#include "tensor/gpu_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace tandem::cuda {
namespace {

// Ampere's. Older GPUs lack bf16 on the matrix units and asynchronous copies.
constexpr int kLeastCapability = 80;

/// 90 of "90a".
int capability_of(const std::string& arch) {
  int value = 0;
  std::from_chars(arch.data(), arch.data() + arch.size(), value);
  return value;
}

/// Whether a GPU runs machine code for `arch`: within a generation the later run that of the
/// earlier, but code with a generation's own instructions ("a") is for one GPU alone.
bool runs(const GpuFacts& gpu, const std::string& arch) {
  const int own = gpu.major * 10 + gpu.minor, of = capability_of(arch);
  if (arch.back() == 'a') return own == of;
  return own / 10 == of / 10 && own >= of;
}

std::string capability_text(const GpuFacts& gpu) {
  return fmt::format("{} (compute capability {}.{})", gpu.name, gpu.major, gpu.minor);
}

/// How to get machine code for a GPU.
std::string rebuild_hint(const GpuFacts& gpu) {
  // The newest of its generation that TANDEM_CUDA_ARCHS takes: 8.7 runs code for 8.6.
  int arch = gpu.major * 10;
  for (const int known : {86, 89})
    if (known / 10 == gpu.major && known % 10 <= gpu.minor) arch = known;
  return fmt::format("build with cmake -DTANDEM_CUDA_ARCHS={}{}", arch, gpu.major == 9 ? "a" : "");
}

}  // namespace

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string code_text(const GpuCode& code) {
  std::vector<std::string> parts;
  if (!code.machine.empty())
    parts.push_back(fmt::format("machine code for sm_{}", fmt::join(code.machine, ", sm_")));
  if (!code.ptx.empty()) parts.push_back("PTX for compute_" + code.ptx);
  return fmt::format("CUDA {}: {}", cuda_version_text(code.toolkit),
                     parts.empty() ? "no code" : fmt::format("{}", fmt::join(parts, ", ")));
}

std::string why_driver_unfit(int toolkit, int driver) {
  if (driver == 0) return "there is no NVIDIA driver";
  if (driver / 1000 >= toolkit / 1000) return "";
  return fmt::format(
      "the NVIDIA driver supports CUDA {} at most, this build of tandem needs {}.0: update the "
      "driver",
      cuda_version_text(driver), toolkit / 1000);
}

std::optional<Error> why_unfit(const GpuCode& code, const GpuFacts& gpu) {
  const int own = gpu.major * 10 + gpu.minor;
  const auto error = [](std::string text) {
    return Error(ErrorKind::device, "cuda", std::move(text));
  };
  if (own < kLeastCapability)
    return error(capability_text(gpu) +
                 " is not supported: tandem needs compute capability 8.0 (Ampere) or later")
        .hint("use --device cpu, or a newer GPU with --device cuda:N");
  if (const std::string why = why_driver_unfit(code.toolkit, gpu.driver); !why.empty())
    return error(why).hint(
        "nvidia-smi shows the driver's version; use --device cpu if it cannot be updated");
  if (std::ranges::any_of(code.machine, [&](const std::string& arch) { return runs(gpu, arch); }))
    return std::nullopt;
  if (code.ptx.empty() || own < capability_of(code.ptx))
    return error(fmt::format("this build of tandem has no code for {}, only {}",
                             capability_text(gpu), code_text(code)))
        .hint(rebuild_hint(gpu) + ", or use --device cpu");
  // PTX is newer than the driver if the toolkit is: of one major version machine code alone runs.
  if (gpu.driver < code.toolkit)
    return error(fmt::format("the NVIDIA driver supports CUDA {} at most and cannot compile this "
                             "build's PTX of CUDA {} for {}",
                             cuda_version_text(gpu.driver), cuda_version_text(code.toolkit),
                             capability_text(gpu)))
        .hint("update the driver, or " + rebuild_hint(gpu));
  return std::nullopt;
}

}  // namespace tandem::cuda
