#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace tandem {

/// How long a planned buffer lives.
enum class Lifetime : uint8_t {
  run,   // until the end of the run
  load,  // while weights are loaded, gone before the first forward
};

struct PlanItem {
  std::string name;  // "group/detail", e.g. "weights/layers.3.ffn_up"
  size_t bytes = 0;
  Device device;
  Lifetime lifetime = Lifetime::run;
};

/// Every buffer of a run, stated before anything is allocated. `--dry-run` prints it and Arena
/// allocates from it, so the two cannot drift apart.
class MemoryPlan {
 public:
  /// Names are unique; a second item of one name is a bug. Items of 0 bytes are kept out.
  void add(std::string name, size_t bytes, Device device = {}, Lifetime lifetime = Lifetime::run);

  const std::vector<PlanItem>& items() const { return items_; }
  const PlanItem* find(const std::string& name) const;
  /// Largest number of bytes held at once on a device: everything of lifetime run, plus what load
  /// needs on top of the weights that are already there by then (loading ends before activations
  /// and caches are taken).
  size_t peak(Device device) const;
  /// Sum over items whose name begins with `group` + "/".
  size_t group_bytes(const std::string& group, Device device) const;
  /// The same over all devices.
  size_t group_bytes(const std::string& group) const;
  /// Names of groups, in order of first appearance.
  std::vector<std::string> groups() const;

  /// What a device holds, by group: `weights 14.96 GiB, kv 12.00 GiB`.
  std::string parts(Device device) const;

  /// errors   kind memory when the peak exceeds `limit_bytes`: lists the groups and what to lower
  void check_fits(Device device, size_t limit_bytes) const;

 private:
  std::vector<PlanItem> items_;
};

/// `1.50 GiB`, `12.0 MiB`, `312 B`.
std::string format_bytes(size_t bytes);

}  // namespace tandem
