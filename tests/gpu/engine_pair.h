#pragma once
#include "generate_runs.h"
#include "tensor/cuda.h"

/// One engine on the CPU and one like it on the first GPU.
namespace tandem::test {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

/// Whether `body` leaves as much of the card free as there was before. Other processes change that,
/// too, so one try of five is enough.
template <class Body>
bool takes_nothing(const Body& body) {
  for (int i = 0; i < 5; ++i) {
    const size_t before = cuda::device_info(0).free_bytes;
    body();
    if (cuda::device_info(0).free_bytes >= before) return true;
  }
  return false;
}

/// Largest difference of f32 logits that the project allows; sums of the same terms in another
/// order stay two orders of magnitude below it, products in TF32 do not.
inline constexpr double kF32Tolerance = 1e-3;

struct EnginePair {
  std::unique_ptr<decode::Engine> cpu, gpu;
};

inline EnginePair make_pair_of(const std::filesystem::path& folder, const Setup& setup = {}) {
  Setup on_gpu = setup;
  on_gpu.device = kGpu;
  return {make_engine(folder, setup), make_engine(folder, on_gpu)};
}

/// New tokens of several sequences at once; logits of the last of each.
struct Batch {
  std::vector<int> slots;
  std::vector<Ids> tokens;

  std::vector<decode::SeqTokens> parts() const {
    std::vector<decode::SeqTokens> p;
    for (size_t i = 0; i < slots.size(); ++i) p.push_back({slots[i], tokens[i], true});
    return p;
  }
};

inline std::vector<Row> prefill_all(decode::Engine& engine, const Batch& batch) {
  std::vector<Row> rows(batch.slots.size());
  engine.prefill(batch.parts(), [&](std::span<const size_t> which, const Tensor& logits) {
    const Tensor host = engine.on_host(logits);
    for (size_t i = 0; i < which.size(); ++i)
      rows[which[i]] = row_of(host, static_cast<int64_t>(i));
  });
  return rows;
}

inline std::vector<Row> extend_all(decode::Engine& engine, const Batch& batch) {
  const Tensor logits = engine.extend(batch.parts());
  std::vector<Row> rows;
  for (int64_t i = 0; i < logits.rows(); ++i) rows.push_back(row_of(logits, i));
  return rows;
}

inline double max_difference(const std::vector<Row>& a, const std::vector<Row>& b) {
  double worst = a.size() == b.size() ? 0 : 1e30;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = worse(worst, max_difference(a[i], b[i]));
  return worst;
}

/// `n` tokens of `ids` from the one at `begin` on.
inline Ids part_of(const Ids& ids, size_t begin, size_t n) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(begin + n)};
}

}  // namespace tandem::test
