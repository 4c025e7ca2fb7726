#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ranks/add_parts.h"
#include "kernels/ranks/peer_sum.h"
#include "ranks/group_comm.h"
#include "ranks/nccl.h"
#include "tensor/cuda.h"

namespace tandem::ranks {

/// Ranks that each compute on a GPU. Small sums go by memory that the GPUs write for each other,
/// where the link allows that, large ones by NCCL: whichever was faster for their size when the
/// ranks met.
class DeviceComm final : public GroupComm {
 public:
  /// Numbers that the inboxes hold of each rank.
  static constexpr int64_t kCapacity = int64_t{1} << 18;

  /// All ranks at once, with their GPUs.
  /// errors   kind device: two ranks have one GPU, NCCL is missing or fails
  DeviceComm(std::shared_ptr<Group> group, int device);
  ~DeviceComm() override;

  void sum(const Tensor& x, Stream stream) override;
  void gather(void* all, size_t part_bytes, Stream stream) override;
  Tensor parts(int set, int64_t rows, int64_t width) override;
  void reserve_parts(int64_t numbers) override;
  void add_parts(const Tensor& x, const Tensor& parts, Stream stream) override;

  /// Bytes on the GPU of what the ranks share, NCCL's share apart.
  static size_t inbox_bytes(int n_ranks);
  /// The same of parts of sums of `numbers` numbers.
  static size_t part_bytes(int64_t numbers);
  /// What NCCL takes of a GPU, as seen of two ranks on H100s (2.28).
  static constexpr size_t kNcclBytes = size_t{845} << 20;
  /// The same once it has added up and gathered what takes hundreds of MB, as training does.
  static constexpr size_t kNcclBytesOfLarge = size_t{1675} << 20;
  /// How numbers go, for people: `peer memory up to 1024 KiB (4096 numbers 4.0 us, NCCL 13.1), else
  /// NCCL 2.28.9`.
  const std::string& ways() const { return ways_; }

 private:
  void link_peers();
  /// Every rank's memory as this GPU sees it, its own among it; empty, and why, where one cannot be
  /// seen by all.
  std::vector<void*> see_all(void* own, std::string& why_not);
  PartLinks part_links(int set) const;
  void choose_ways();
  /// Of one of several runs in a graph.
  double seconds_of(cuda::Queue& queue, const std::function<void(int i)>& run);

  int device_;
  std::unique_ptr<Nccl> nccl_;  // null where ranks share a GPU
  void* inbox_ = nullptr;       // and the turns after it
  std::vector<void*> opened_;   // others' inboxes
  cuda::PinnedBuffer abort_;
  std::optional<PeerLinks> links_;  // none: the link allows no peer memory
  std::string why_no_links_;
  int64_t most_by_peers_ = 0;        // numbers
  std::vector<void*> own_parts_;     // the last is in use
  std::vector<void*> shared_parts_;  // of each rank: two sets, flags, turns; empty: none
  int64_t part_numbers_ = 0;         // of a set
  std::string ways_;
};

}  // namespace tandem::ranks
