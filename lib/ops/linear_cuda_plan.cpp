// The memory of dense layers on a GPU: arithmetic alone, compiled in every build, so that a plan
// needs no GPU.
#include <algorithm>

#include "ops/linear_device.h"

namespace tandem::ops::linear_cuda {
namespace {

// Of a staging buffer: far beyond what a copy costs to start (some 10 us, 0.5 MiB at PCIe speed).
constexpr size_t kSlotBytes = size_t{32} << 20;
constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Places::Places(const PackedWeights::Spec& s) {
  check_taken(s, takes_any(s.stored, s.input));
  const auto out = static_cast<size_t>(s.out);
  bias = aligned(matrix_bytes(s.stored, s.out, s.in));
  rounded_bias = bias + (s.bias ? aligned(out * sizeof(float)) : 0);
  end = rounded_bias + (s.bias ? aligned(out * sizeof(bf16)) : 0);
}

bool takes_any(const WeightFormat& stored, DType input) {
  return takes_numbers<DType::bf16>(stored, input) || takes_numbers<DType::f32>(stored, input);
}

size_t bytes(const PackedWeights::Spec& spec) { return Places(spec).end; }

size_t staging_bytes(const PackedWeights::Spec& spec) {
  const size_t row = row_bytes(spec.stored, spec.row_numbers());
  const size_t all = static_cast<size_t>(spec.out) * row;
  return kStagingSlots * aligned(std::max(row, std::min(all, kSlotBytes)));
}

size_t workspace_bytes(const PackedWeights::Spec&, int64_t) { return kWorkspaceBytes; }

}  // namespace tandem::ops::linear_cuda
