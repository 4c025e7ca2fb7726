#include "train/backward/placed_index.h"

namespace tandem::train {
namespace {

constexpr const char* kName = "gradients/indices";

}  // namespace

void PlacedIndices::plan(const TrainedSet& set, Device device, MemoryPlan& plan) {
  if (device.kind == Device::Kind::cuda && set.index_size > 0)
    plan.add(kName, static_cast<size_t>(set.index_size) * sizeof(int32_t), device);
}

PlacedIndices::PlacedIndices(const TrainedSet& set, Arena& arena, const Exec& exec) {
  if (!exec.on_gpu() || set.index_size == 0) return;
  auto* const copy = static_cast<int32_t*>(arena.take(kName));
  copy_ = copy;
  each_matrix(set, [&](const TrainedMatrix& m) {
    if (m.listed())
      exec.queue->copy_in(copy + m.index_offset, m.index.data(), m.index.size() * sizeof(int32_t));
  });
}

std::span<const int32_t> PlacedIndices::of(const TrainedMatrix& m) const {
  if (!m.listed()) return {};
  return {copy_ == nullptr ? m.index.data() : copy_ + m.index_offset, m.index.size()};
}

}  // namespace tandem::train
