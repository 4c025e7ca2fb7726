#include "speculate/plan/hardware.h"

#include "base/gpu_cards.h"

namespace tandem::speculate {

bool HardwareSection::complete() const {
  return card.has_value() || (read_gbps.has_value() && bf16_tflops.has_value());
}

MachineRates HardwareSection::rates() const {
  const GpuCard* sheet = card ? find_gpu_card(card->value) : nullptr;
  const double gbps = read_gbps.value_or(sheet != nullptr ? sheet->read_gbps : 0);
  const double tflops = bf16_tflops.value_or(sheet != nullptr ? sheet->bf16_tflops : 0);
  return {.ranks = gpus,
          .flops_s = 1e12 * tflops * compute_share,
          .read_bytes_s = 1e9 * gbps * read_share,
          .link_bytes_s = 1e9 * link_gbps,
          .reduction_s = all_reduce,
          .forward_s = forward,
          .round_s = step};
}

std::optional<double> HardwareSection::memory_bytes() const {
  if (memory) return memory_share * static_cast<double>(memory->value);
  if (!card) return std::nullopt;
  return memory_share * static_cast<double>(find_gpu_card(card->value)->memory_bytes);
}

}  // namespace tandem::speculate
