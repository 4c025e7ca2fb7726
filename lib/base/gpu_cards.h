#pragma once
#include <cstddef>
#include <span>
#include <string_view>

namespace tandem {

/// A GPU as plans see it: what decides which buffers a run has there and whether they fit, and the
/// rates that bound its time.
struct GpuCard {
  std::string_view name;    // run.plan_for; empty for one that stands for any
  std::string_view title;   // as the driver names it
  size_t memory_bytes = 0;  // that CUDA reports as the card's
  int capability = 0;       // compute capability, 89 for 8.9
  int multiprocessors = 0;
  int block_shared_bytes = 0;  // shared memory that one block may have
  // By the data sheet; 0 where no card is meant.
  double read_gbps = 0;    // of device memory
  double bf16_tflops = 0;  // dense products, f32 sums
  double link_gbps = 0;    // one direction of the link to the host
  double peer_gbps = 0;    // and of those to other cards; 0: they go the way to the host
};

/// All cards that ship with tandem.
std::span<const GpuCard> gpu_cards();
/// The card of this name, or null.
const GpuCard* find_gpu_card(std::string_view name);
/// A card of this memory and of no model: the limits of an H100, no rates.
GpuCard any_gpu_card(size_t memory_bytes);

}  // namespace tandem
