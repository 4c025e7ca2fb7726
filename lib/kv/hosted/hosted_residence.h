#pragma once
#include <memory>
#include <optional>

#include "kv/hosted/hosted_keys.h"
#include "kv/residence.h"

namespace tandem::kv {

/// Some layers of the first page group in host memory (kv/hosted/hosted_keys.h), whose readers
/// index them there.
struct HostedSpec {
  HostedKeys::Spec keys;
  Geometry geometry;
  int recent = 0;                           // newest tokens that host memory may lack
  std::optional<AttentionBounds> far = {};  // when the CPU attends all keys in host memory
};
void plan_hosted(const HostedSpec& spec, MemoryPlan& plan);
std::unique_ptr<Residence> make_hosted(const HostedSpec& spec, PageGroups& groups, Arena& arena,
                                       const Exec& exec);

}  // namespace tandem::kv
