#pragma once
#include <cstddef>
#include <map>
#include <string>

#include "tensor/memory_plan.h"

namespace tandem {

/// Allocates the buffers of one memory plan by name: exactly the planned bytes, each at most once
/// at a time. Taking a buffer that was not planned is a bug, so a plan cannot fall short of a run.
class Arena {
 public:
  explicit Arena(MemoryPlan plan) : plan_(std::move(plan)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Zero-filled memory of the planned device. On the host aligned to 4096 bytes, and huge pages
  /// are asked for from 2 MiB on; on a GPU aligned to 256.
  /// errors   kind memory when the system refuses; kind device without that GPU
  void* take(const std::string& name);
  /// Frees one buffer (of lifetime load).
  void give_back(const std::string& name);

  const MemoryPlan& plan() const { return plan_; }

 private:
  struct Block {
    void* data;
    size_t bytes;
    Device device;
  };
  static void* allocate(const PlanItem& item);
  static void release(const Block& block) noexcept;

  MemoryPlan plan_;
  std::map<std::string, Block> taken_;
};

/// Peak resident bytes of this process so far, as the kernel counted them (VmHWM).
size_t peak_resident_bytes();
/// Restarts the kernel's count of that peak at the bytes resident now; false where it cannot.
bool reset_peak_resident();
/// Resident bytes now.
size_t resident_bytes();
/// Bytes this process may use: available memory, or less by a cgroup limit; all of the machine's
/// where the system does not say how much that is, as without a file descriptor to spare.
size_t available_host_bytes();

}  // namespace tandem
