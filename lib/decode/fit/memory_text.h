#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "decode/fit/placement.h"

// Texts of plans on a run's memory.
namespace tandem::decode {

/// Bytes of layers in host memory, or of parts of them, which forwards of all weights copy to the
/// GPU, and how many layers.
struct Streamed {
  size_t layers = 0, bytes = 0;
  bool divided = false;  // drafts copy less
};
Streamed streamed_by(const MemoryPlan& plan, const MemoryLimits& limits);

/// Seconds that the card's link takes for these bytes.
inline double copy_seconds(size_t bytes, const GpuCard& card) {
  return static_cast<double>(bytes) / (card.link_gbps * 1e9);
}
/// "12.3 ms", "4.5 s".
std::string duration(double seconds);

/// The line about the GPU, empty for a run on the CPU; says where the GPU is not this machine's.
std::string gpu_line(const MemoryLimits& limits);

/// The device in a few words: `cpu`, `cuda:0`, `rtx-4090, not this machine's`.
std::string planned_device(const MemoryLimits& limits);

/// The lines about memory: one a device, and one about layers that a GPU's run keeps in host
/// memory.
std::string memory_lines(const MemoryPlan& plan, const MemoryLimits& limits);

/// Returns these lines and gpu_line as JSON: `gpu`, `memory` by device, `layers_streamed`, `fits`.
nlohmann::ordered_json memory_json(const MemoryPlan& plan, const MemoryLimits& limits);

}  // namespace tandem::decode
