#pragma once
// Layout of the workspace of top_n and sample. Unnamed: included by sources with per-ISA flags.
#include <string.h>

#include "kernels/sample/sample.h"

namespace tandem {
namespace {

constexpr int kScanBlock = 64;  // logits with one maximum: 4 vectors of 16
constexpr int kHistogramBins = 2048;
constexpr size_t kHistogramBytes = 4 * kHistogramBins * sizeof(uint64_t);

struct Workspace {
  uint64_t* histogram;  // [4, kHistogramBins]
  uint64_t* weight;     // [V]
  float* penalized;     // [V]
  float* top;           // [V + 1]: appending without a branch writes one past the kept
  int32_t* id;          // [V + 1]
  uint32_t* block_max;  // [V / kScanBlock, rounded up]
  size_t bytes;
};

/// Places the parts one after the other; each part's size is a multiple of its alignment.
inline Workspace lay_out(void* base, int vocab) {
  char* p = static_cast<char*>(base);
  const size_t v = (static_cast<size_t>(vocab) + kScanBlock) / kScanBlock * kScanBlock + kScanBlock;
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    void* part = p + at;
    at += bytes;
    return part;
  };
  Workspace w;
  w.histogram = static_cast<uint64_t*>(take(kHistogramBytes));
  w.weight = static_cast<uint64_t*>(take(v * sizeof(uint64_t)));
  w.penalized = static_cast<float*>(take(v * sizeof(float)));
  w.top = static_cast<float*>(take(v * sizeof(float)));
  w.id = static_cast<int32_t*>(take(v * sizeof(int32_t)));
  w.block_max = static_cast<uint32_t*>(take(v / kScanBlock * sizeof(uint32_t)));
  w.bytes = (at + 63) / 64 * 64;  // what follows is aligned as the whole
  return w;
}

}  // namespace
}  // namespace tandem
