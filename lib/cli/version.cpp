#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <cstdlib>

#include "base/cpu_features.h"
#include "base/parallel.h"
#include "cli/help.h"
#include "tandem_version.h"

namespace tandem::cli {

std::string version_text(const ToolInfo& info, bool report) {
  std::string text = fmt::format("{} (tandem {}, git {}{})\n", info.name, TANDEM_VERSION,
                                 TANDEM_GIT_COMMIT, TANDEM_GIT_DIRTY ? ", modified" : "");
  if (!report) return text;
  utsname system{};
  ::uname(&system);
  struct sysinfo memory {};
  ::sysinfo(&memory);
  const double gib = static_cast<double>(memory.totalram) * memory.mem_unit / 0x1p30;
  text += fmt::format("build     {}, {}, CPU only\n", TANDEM_BUILD_TYPE, TANDEM_COMPILER);
  text += fmt::format("system    {} {} {}, {:.1f} GiB\n", system.sysname, system.release,
                      system.machine, gib);
  text += fmt::format("cpu       {}, {} usable cores\n", cpu_model_name(), usable_cores());
  text += fmt::format("isa       {} in use, {} detected\n", isa_name(isa_in_use()),
                      isa_name(isa_detected()));
  for (const char* name : {"TANDEM_CACHE_DIR", "TANDEM_RECIPE_PATH", "TANDEM_MODEL_DIR",
                           "TANDEM_LOG", "TANDEM_ISA", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name))
      text += fmt::format("env       {}={}\n", name, value);
  return text;
}

}  // namespace tandem::cli
