#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "tensor/memory_plan.h"

/// Short forms of numbers and texts that must stay as they are.
namespace tandem::test {

inline std::string hash_of(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

/// Names and order of buffers, and sizes on GPUs: those on a CPU depend on its instructions.
inline std::string text_of(const MemoryPlan& plan) {
  std::string text;
  for (const PlanItem& i : plan.items()) {
    const bool on_gpu = i.device.kind == Device::Kind::cuda;
    text += fmt::format("{} {} {}\n", i.name, on_gpu ? i.bytes : 0, static_cast<int>(i.lifetime));
  }
  return text;
}

}  // namespace tandem::test
