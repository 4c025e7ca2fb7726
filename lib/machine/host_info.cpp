#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "base/parallel.h"
#include "machine/hardware.h"

namespace tandem::machine {
namespace {

/// PRETTY_NAME of os-release, as every distribution with systemd writes it.
std::string os_name() {
  std::ifstream f("/etc/os-release");
  for (std::string line; std::getline(f, line);) {
    if (line.rfind("PRETTY_NAME=", 0) != 0) continue;
    line = line.substr(12);
    if (line.size() >= 2 && line.front() == '"') line = line.substr(1, line.size() - 2);
    return line;
  }
  return "Linux";
}

int count_sockets() {
  std::ifstream f("/proc/cpuinfo");
  std::set<std::string> ids;
  for (std::string line; std::getline(f, line);)
    if (line.rfind("physical id", 0) == 0) ids.insert(line.substr(line.find(':') + 1));
  return ids.empty() ? 1 : static_cast<int>(ids.size());
}

int count_numa_nodes() {
  int n = 0;
  std::error_code ignored;
  while (std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(n), ignored)) ++n;
  return n > 0 ? n : 1;
}

}  // namespace

HostInfo read_host_info() {
  HostInfo info;
  utsname name{};
  if (uname(&name) == 0) info.kernel = name.release;
  info.os = os_name();
  info.cpu_model = cpu_model_name();
  info.sockets = count_sockets();
  info.cores = usable_cores();
  info.numa_nodes = count_numa_nodes();
  info.mem_bytes =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return info;
}

}  // namespace tandem::machine
