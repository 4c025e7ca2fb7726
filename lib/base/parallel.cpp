#include "base/parallel.h"

#include <omp.h>

#include <cmath>
#include <fstream>
#include <string>

#include "base/bound_threads.h"

namespace tandem {
namespace {

/// CPU quota of the process's cgroup (v2, then v1) in whole cores; 0 when unlimited or unknown.
int cgroup_quota_cores() {
  if (std::ifstream f("/sys/fs/cgroup/cpu.max"); f) {
    std::string quota;
    double period = 0;
    if (f >> quota >> period && quota != "max" && period > 0)
      return std::max(1, static_cast<int>(std::ceil(std::stod(quota) / period)));
    return 0;
  }
  std::ifstream q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (q >> quota && p >> period && quota > 0 && period > 0)
    return std::max(1, static_cast<int>(std::ceil(quota / period)));
  return 0;
}

}  // namespace

void set_threads(int n) { omp_set_num_threads(n); }

int max_threads() { return omp_get_max_threads(); }

int usable_cores() {
  const int n = std::max<int>(1, static_cast<int>(core_cpus().size()));
  const int quota = cgroup_quota_cores();
  return quota > 0 ? std::min(n, quota) : n;
}

}  // namespace tandem
