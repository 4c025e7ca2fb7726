#include "cli/threads.h"

#include <fmt/format.h>
#include <strings.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/bound_threads.h"
#include "base/parallel.h"

namespace tandem::cli {

void use_threads(int n) { set_threads(n > 0 ? n : default_threads()); }

std::vector<std::string> thread_warnings() {
  std::vector<std::string> warnings;
  const auto value = [](const char* name) {
    const char* const v = std::getenv(name);
    return std::string_view(v != nullptr ? v : "");
  };
  if (const std::string_view asked = value("OMP_NUM_THREADS"); !asked.empty()) {
    int n = 0;
    std::from_chars(asked.data(), asked.data() + asked.size(), n);
    if (n < 1)
      warnings.push_back(
          fmt::format("OMP_NUM_THREADS: expected a number of threads, found '{}'. Using {} threads",
                      asked, default_threads()));
    else if (n > usable_cores())
      warnings.push_back(
          fmt::format("OMP_NUM_THREADS={}: this process may use {} core{}, so {} thread{} used. -t "
                      "sets more",
                      n, usable_cores(), usable_cores() == 1 ? "" : "s", default_threads(),
                      default_threads() == 1 ? " is" : "s are"));
  }
  if (const std::string_view policy = value("OMP_WAIT_POLICY");
      !policy.empty() && strcasecmp(policy.data(), "active") != 0 &&
      strcasecmp(policy.data(), "passive") != 0)
    warnings.push_back(fmt::format(
        "OMP_WAIT_POLICY: expected active or passive, found '{}'. The value is ignored", policy));
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"})
    if (const std::string_view v = value(name); !v.empty() && v != "false" && v != "FALSE")
      warnings.push_back(
          fmt::format("{}: OpenMP binds this process and its threads to {} core{}. Unset it and "
                      "choose cores with taskset",
                      name, core_cpus().size(), core_cpus().size() == 1 ? "" : "s"));
  return warnings;
}

}  // namespace tandem::cli
