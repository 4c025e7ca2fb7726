#include "base/gpu_cards.h"

#include <array>

namespace tandem {
namespace {

constexpr size_t tenths_of_gib(size_t tenths) { return tenths * (size_t{1} << 30) / 10; }

// Of a block, by compute capability: CUDA C++ Programming Guide, "Technical Specifications per
// Compute Capability".
constexpr int shared_bytes(int capability) {
  switch (capability) {
    case 80:
      return 163 << 10;
    case 90:
    case 100:
      return 227 << 10;
    default:  // 86, 89, 120
      return 99 << 10;
  }
}

// 16 lanes, 128 of 130 bits data: PCI Express Base Specification 4.0 (16 GT/s) and 5.0 (32 GT/s).
constexpr double kPcie4 = 31.5, kPcie5 = 63.0;

struct DataSheet {
  std::string_view name, title;
  // What CUDA reports (cudaMemGetInfo) under drivers 525 to 580, in tenths of a GiB, rounded down.
  // The data sheets' figures, named with the cards below, are larger: error correction
  // takes a sixteenth of GDDR6, and the driver keeps some for itself.
  size_t memory;
  int capability, multiprocessors;
  double read_gbps, bf16_tflops, link_gbps;
  double peer_gbps = 0;  // half of what it gives for NVLink, which counts both directions
};

constexpr GpuCard card(const DataSheet& s) {
  return {.name = s.name,
          .title = s.title,
          .memory_bytes = tenths_of_gib(s.memory),
          .capability = s.capability,
          .multiprocessors = s.multiprocessors,
          .block_shared_bytes = shared_bytes(s.capability),
          .read_gbps = s.read_gbps,
          .bf16_tflops = s.bf16_tflops,
          .link_gbps = s.link_gbps,
          .peer_gbps = s.peer_gbps};
}

// Multiprocessors, rates of memory and of dense bf16 products with f32 sums (half of what a data
// sheet gives with sparsity), by NVIDIA's documents:
constexpr std::array kCards = {
    // HGX B200 data sheet: 180 GB HBM3e, 8 TB/s, 2.25 PFLOP/s dense; 148 as CUDA reports
    card({"b200", "NVIDIA B200", 1783, 100, 148, 8000, 2250, kPcie5, 900}),
    // H200 Tensor Core GPU data sheet: 141 GB HBM3e; 132 as H100 SXM5
    card({"h200", "NVIDIA H200", 1397, 90, 132, 4800, 989, kPcie5, 450}),
    // H100 Tensor Core GPU data sheet and architecture white paper: SXM5, 80 GB HBM3
    card({"h100", "NVIDIA H100 80GB HBM3", 791, 90, 132, 3350, 989, kPcie5, 450}),
    // the same: PCIe, 80 GB HBM2e
    card({"h100-pcie", "NVIDIA H100 PCIe", 791, 90, 114, 2000, 756, kPcie5}),
    // A100 80GB data sheet and A100 architecture white paper: SXM4
    card({"a100-80", "NVIDIA A100-SXM4-80GB", 791, 80, 108, 2039, 312, kPcie4, 300}),
    // the same: SXM4, 40 GB HBM2
    card({"a100-40", "NVIDIA A100-SXM4-40GB", 393, 80, 108, 1555, 312, kPcie4, 300}),
    // L40S data sheet: 48 GB GDDR6; Ada architecture white paper: 142
    card({"l40s", "NVIDIA L40S", 443, 89, 142, 864, 362, kPcie4}),
    // L20 data sheet: 48 GB GDDR6, 11776 CUDA cores at 128 a multiprocessor
    card({"l20", "NVIDIA L20", 443, 89, 92, 864, 119.5, kPcie4}),
    // L4 data sheet: 24 GB GDDR6, 242 TFLOP/s with sparsity; 58 as CUDA reports
    card({"l4", "NVIDIA L4", 219, 89, 58, 300, 121, kPcie4}),
    // A10 data sheet: 24 GB GDDR6, 9216 CUDA cores at 128 a multiprocessor
    card({"a10", "NVIDIA A10", 219, 86, 72, 600, 125, kPcie4}),
    // RTX A6000 data sheet: 48 GB GDDR6, 10752 CUDA cores, 309.7 TFLOP/s with sparsity; its error
    // correction is off as it ships
    card({"rtx-a6000", "NVIDIA RTX A6000", 474, 86, 84, 768, 154.8, kPcie4}),
    // Ampere GA102 architecture white paper: 24 GB GDDR6X
    card({"rtx-3090", "NVIDIA GeForce RTX 3090", 235, 86, 82, 936, 71, kPcie4}),
    // Ada GPU architecture white paper, appendix A: 24 GB GDDR6X, 16 GB GDDR6X
    card({"rtx-4090", "NVIDIA GeForce RTX 4090", 235, 89, 128, 1008, 165.2, kPcie4}),
    card({"rtx-4080", "NVIDIA GeForce RTX 4080", 155, 89, 76, 716.8, 97.5, kPcie4}),
    // RTX Blackwell GPU architecture white paper, appendix A: 32 GB GDDR7
    card({"rtx-5090", "NVIDIA GeForce RTX 5090", 313, 120, 170, 1792, 209.5, kPcie5}),
};

}  // namespace

std::span<const GpuCard> gpu_cards() { return kCards; }

const GpuCard* find_gpu_card(std::string_view name) {
  for (const GpuCard& c : kCards)
    if (c.name == name) return &c;
  return nullptr;
}

GpuCard any_gpu_card(size_t memory_bytes) {
  const GpuCard& h100 = *find_gpu_card("h100");
  return {.name = {},
          .title = "any GPU",
          .memory_bytes = memory_bytes,
          .capability = h100.capability,
          .multiprocessors = h100.multiprocessors,
          .block_shared_bytes = h100.block_shared_bytes};
}

}  // namespace tandem
