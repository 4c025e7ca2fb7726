#include "base/bound_threads.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "base/parallel.h"

namespace tandem {
namespace {

/// CPUs that the process was given, as the first caller has them.
const cpu_set_t& given_cpus() {
  static const cpu_set_t mask = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
    return set;
  }();
  return mask;
}

/// Moves the calling thread. A system that refuses leaves it where it is: slower, not wrong.
void allow(const cpu_set_t& cpus) { (void)sched_setaffinity(0, sizeof cpus, &cpus); }

cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return set;
}

}  // namespace

const std::vector<int>& core_cpus() {
  static const std::vector<int> cpus = [] {
    std::map<std::pair<int, int>, int> first_of;  // by package and core
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; --cpu) {
      if (!CPU_ISSET(static_cast<size_t>(cpu), &given_cpus())) continue;
      const std::string topology =
          "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
      int package = 0, core = cpu;  // without topology files every CPU counts as a core
      std::ifstream(topology + "physical_package_id") >> package;
      if (std::ifstream f(topology + "core_id"); f) f >> core;
      first_of[{package, core}] = cpu;
    }
    std::vector<int> all;
    for (const auto& [core, cpu] : first_of) all.push_back(cpu);
    std::ranges::sort(all);
    return all;
  }();
  return cpus;
}

BoundThreads::BoundThreads() {
  const std::vector<int>& cpus = core_cpus();
  const int n = max_threads();
  if (n == 1 || n > static_cast<int>(cpus.size())) return;
  n_threads_ = n;
  bind_loop_threads(std::span(cpus).first(static_cast<size_t>(n)), true);
  // Moved to its core, the calling thread has no reason to leave it: the others are taken.
  allow(only(cpus[0]));
  allow(given_cpus());
}

BoundThreads::~BoundThreads() {
  if (n_threads_ == 0) return;
  std::vector<int> all;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &given_cpus())) all.push_back(cpu);
  bind_loop_threads(all, false);
}

}  // namespace tandem
