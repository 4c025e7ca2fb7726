#include "tensor/arena.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "tensor/cuda.h"

namespace tandem {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

/// Value in bytes of a line such as "VmHWM:   123 kB"; 0 when absent.
size_t proc_kib(const char* file, const std::string& key) {
  std::ifstream f(file);
  for (std::string line; std::getline(f, line);)
    if (line.rfind(key + ":", 0) == 0)
      return static_cast<size_t>(std::stoull(line.substr(key.size() + 1))) * 1024;
  return 0;
}

/// All memory of the machine, which the system says without a file.
size_t total_host_bytes() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? size_t{info.totalram} * info.mem_unit : 0;
}

}  // namespace

Arena::~Arena() {
  for (const auto& [name, block] : taken_) release(block);
}

void* Arena::allocate(const PlanItem& item) {
  if (item.device.kind == Device::Kind::cuda) return cuda::allocate(item.device.index, item.bytes);
  // Anonymous memory straight from the system: zeroed, page aligned, and returned at once.
  void* p = ::mmap(nullptr, item.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw make_error(ErrorKind::memory, item.device.name(), "cannot allocate {} for {}: {}",
                     format_bytes(item.bytes), item.name, std::strerror(errno))
        .hint("lower run.context or run.batch, or choose a smaller model");
  if (item.bytes >= kHugePage) ::madvise(p, item.bytes, MADV_HUGEPAGE);
  return p;
}

void Arena::release(const Block& block) noexcept {
  if (block.device.kind == Device::Kind::cuda)
    cuda::free_memory(block.data);
  else
    ::munmap(block.data, block.bytes);
}

void* Arena::take(const std::string& name) {
  const PlanItem* item = plan_.find(name);
  TANDEM_CHECK(item != nullptr, "buffer '{}' was not planned", name);
  TANDEM_CHECK(!taken_.contains(name), "buffer '{}' taken twice", name);
  void* p = allocate(*item);
  taken_[name] = {p, item->bytes, item->device};
  return p;
}

void Arena::give_back(const std::string& name) {
  const auto it = taken_.find(name);
  TANDEM_CHECK(it != taken_.end(), "buffer '{}' freed but not taken", name);
  release(it->second);
  taken_.erase(it);
}

size_t peak_resident_bytes() { return proc_kib("/proc/self/status", "VmHWM"); }

bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

size_t resident_bytes() { return proc_kib("/proc/self/status", "VmRSS"); }

size_t available_host_bytes() {
  size_t available = proc_kib("/proc/meminfo", "MemAvailable");
  if (available == 0) available = total_host_bytes();
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  size_t limit = 0, used = 0;  // "max" leaves limit at 0
  if (limit_file >> limit && used_file >> used && limit > 0)
    available = std::min(available, limit > used ? limit - used : 0);
  return available;
}

}  // namespace tandem
