#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <cstdlib>

#include "base/cpu_features.h"
#include "base/parallel.h"
#include "cli/help.h"
#include "tandem_version.h"
#include "tensor/cuda.h"
#include "tensor/gpu_isa.h"

namespace tandem::cli {

namespace {

/// What a GPU makes of the code that is built in; asks it.
std::string gpu_text(int index) {
  const cuda::GpuFacts facts = cuda::facts_of(index);
  std::string text = fmt::format("{}, compute capability {}.{}, driver for CUDA {}: ", facts.name,
                                 facts.major, facts.minor, cuda::cuda_version_text(facts.driver));
  if (const auto error = cuda::why_unfit(cuda::built_code(), facts)) return text + error->message();
  try {
    cuda::use_device(index);
  } catch (const Error& e) {
    return text + e.message();
  }
  const cuda::Gpu& gpu = cuda::gpu_of(index);
  return text + fmt::format("{} kernels, from {}", cuda::gpu_isa_name(gpu.isa),
                            gpu.from_ptx ? "the PTX" : "machine code");
}

std::string gpus_text() {
  if (!cuda::built_in()) return "";
  const int n = cuda::device_count();
  if (n == 0) return fmt::format("gpu       none: {}\n", cuda::why_none());
  std::string text;
  for (int i = 0; i < n; ++i)
    text += fmt::format("gpu       {}, {}\n", Device{Device::Kind::cuda, i}.name(), gpu_text(i));
  return text;
}

}  // namespace

std::string version_text(const ToolInfo& info, bool report) {
  std::string text = fmt::format("{} (tandem {}, git {}{})\n", info.name, TANDEM_VERSION,
                                 TANDEM_GIT_COMMIT, TANDEM_GIT_DIRTY ? ", modified" : "");
  if (!report) return text;
  utsname system{};
  ::uname(&system);
  struct sysinfo memory {};
  ::sysinfo(&memory);
  const double gib = static_cast<double>(memory.totalram) * memory.mem_unit / 0x1p30;
  text += fmt::format("build     {}, {}, {}\n", TANDEM_BUILD_TYPE, TANDEM_COMPILER,
                      cuda::built_in() ? cuda::code_text(cuda::built_code()) : "CPU only");
  text += fmt::format("system    {} {} {}, {:.1f} GiB\n", system.sysname, system.release,
                      system.machine, gib);
  text += fmt::format("cpu       {}, {} usable cores, {} threads\n", cpu_model_name(), usable_cores(),
                      default_threads());
  text += fmt::format("isa       {} in use, {} detected\n", isa_name(isa_in_use()),
                      isa_name(isa_detected()));
  text += gpus_text();
  for (const char* name :
       {"TANDEM_CACHE_DIR", "TANDEM_RECIPE_PATH", "TANDEM_MODEL_DIR", "TANDEM_LOG", "TANDEM_ISA",
        "TANDEM_GPU_ISA", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name))
      text += fmt::format("env       {}={}\n", name, value);
  return text;
}

}  // namespace tandem::cli
