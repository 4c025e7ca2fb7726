#include "ranks/device_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "io/writer_lock.h"
#include "ops/peers.h"

namespace tandem::ranks {
namespace {

constexpr size_t kWordBytes = 16;  // of two numbers
constexpr size_t kTurns = DeviceComm::kCapacity / kPeerBlockNumbers;
constexpr size_t kNameBytes = 64;

/// Ranks of a test may share a GPU, which NCCL refuses.
bool may_share() { return std::getenv("TANDEM_RANKS_SHARE_GPU") != nullptr; }

using Name = std::array<char, kNameBytes>;

Name name_of(const std::string& text) {
  Name name{};
  text.copy(name.data(), kNameBytes - 1);
  return name;
}

}  // namespace

size_t DeviceComm::inbox_bytes(int n_ranks) {
  return 2 * static_cast<size_t>(n_ranks) * static_cast<size_t>(kCapacity / 2) * kWordBytes +
         kTurns * sizeof(uint32_t);
}

DeviceComm::DeviceComm(std::shared_ptr<Group> group, int device)
    : GroupComm(std::move(group)), device_(device), abort_(sizeof(uint32_t)) {
  cuda::use_device(device_);
  std::memset(abort_.data(), 0, abort_.size());
  const std::vector<Name> gpus = group_->from_all(name_of(cuda::unique_name(device_)));
  bool shared = false;
  for (size_t a = 0; a < gpus.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (std::strcmp(gpus[a].data(), gpus[b].data()) == 0) {
        shared = true;
        if (!may_share())
          throw make_error(ErrorKind::device, "run.device", "ranks {} and {} share one GPU, {}", b,
                           a, gpus[a].data())
              .hint(
                  "give each rank its own GPU (--device cuda:0, --device cuda:1), or use --device "
                  "auto");
      }
  if (!shared) {
    Nccl::Id id{};
    if (rank() == 0) id = Nccl::new_id();
    group_->broadcast(id);
    nccl_ = std::make_unique<Nccl>(id, rank(), size());
  }
  link_peers();
  choose_ways();
}

std::vector<void*> DeviceComm::see_all(void* own, std::string& why_not) {
  struct Offer {
    cuda::PeerHandle handle;
    Name host;
  };
  const std::vector<Offer> offers =
      group_->from_all(Offer{cuda::share_memory(own), name_of(io::host_name())});
  std::vector<void*> all;
  std::string failed;
  for (int r = 0; r < size(); ++r) {
    const Offer& offer = offers[static_cast<size_t>(r)];
    all.push_back(r == rank() ? own : nullptr);
    if (r == rank()) continue;
    if (std::strcmp(offer.host.data(), offers[0].host.data()) != 0)
      failed = "ranks on several machines";
    else if (void* const p = cuda::open_shared(device_, offer.handle, failed); p != nullptr)
      opened_.push_back(all.back() = p);
  }
  for (const Name& why : group_->from_all(name_of(failed)))
    if (why[0] != '\0') why_not = why.data();
  return why_not.empty() ? all : std::vector<void*>();
}

void DeviceComm::link_peers() {
  if (size() > kMostPeers) {
    why_no_links_ = fmt::format("{} ranks, at most {}", size(), kMostPeers);
    return;
  }
  inbox_ = cuda::allocate(device_, inbox_bytes(size()));
  const std::vector<void*> all = see_all(inbox_, why_no_links_);
  if (all.empty()) return;
  PeerLinks links{};
  links.rank = rank();
  links.n_ranks = size();
  links.capacity = kCapacity;
  std::ranges::copy(all, links.inboxes);
  links.turns = reinterpret_cast<uint32_t*>(static_cast<std::byte*>(inbox_) + inbox_bytes(size()) -
                                            kTurns * sizeof(uint32_t));
  links.abort = reinterpret_cast<const uint32_t*>(abort_.data());
  links_ = links;
}

size_t DeviceComm::part_bytes(int64_t numbers) {
  return 2 * static_cast<size_t>(numbers) * sizeof(bf16) + (kMostPeers + 2) * sizeof(uint32_t);
}

void DeviceComm::reserve_parts(int64_t numbers) {
  if (!links_ || !nccl_ || numbers <= std::max(part_numbers_, most_by_peers_)) return;
  numbers = (numbers + 63) / 64 * 64;
  own_parts_.push_back(cuda::allocate(device_, part_bytes(numbers)));
  std::string why_not;
  shared_parts_ = see_all(own_parts_.back(), why_not);
  part_numbers_ = numbers;
  if (shared_parts_.empty()) return;
  // Whichever is faster at this size.
  cuda::Queue queue(device_);
  auto* const memory =
      static_cast<float*>(cuda::allocate(device_, static_cast<size_t>(numbers) * sizeof(float)));
  const Tensor x(memory, DType::f32, {numbers}, {Device::Kind::cuda, device_});
  const double by_parts =
      seconds_of(queue, [&](int i) { ops::add_parts(part_links(i % 2), x, queue.stream()); });
  const double by_nccl =
      seconds_of(queue, [&](int) { nccl_->sum(memory, numbers, queue.stream()); });
  cuda::free_memory(memory);
  if (group_->agree(static_cast<uint8_t>(by_parts > by_nccl)) != 0) shared_parts_.clear();
}

PartLinks DeviceComm::part_links(int set) const {
  PartLinks links{};
  const auto n = static_cast<size_t>(part_numbers_) * sizeof(bf16);
  for (int r = 0; r < size(); ++r) {
    auto* const memory = static_cast<std::byte*>(shared_parts_[static_cast<size_t>(r)]);
    links.parts[r] = memory + static_cast<size_t>(set) * n;
    links.flags[r] = reinterpret_cast<uint32_t*>(memory + 2 * n);
  }
  links.turn = links.flags[rank()] + kMostPeers;
  links.abort = reinterpret_cast<const uint32_t*>(abort_.data());
  links.rank = rank();
  links.n_ranks = size();
  return links;
}

Tensor DeviceComm::parts(int set, int64_t rows, int64_t width) {
  const int64_t n = rows * width;
  if (shared_parts_.empty() || n <= most_by_peers_ || n > part_numbers_ || n % 8 != 0) return {};
  return {const_cast<void*>(part_links(set).parts[rank()]),
          DType::bf16,
          {rows, width},
          {Device::Kind::cuda, device_}};
}

void DeviceComm::add_parts(const Tensor& x, const Tensor& parts, Stream stream) {
  const int set = parts.raw() == part_links(0).parts[rank()] ? 0 : 1;
  ops::add_parts(part_links(set), x, stream);
}

double DeviceComm::seconds_of(cuda::Queue& queue, const std::function<void(int)>& run) {
  constexpr int kRuns = 20, kTries = 3;
  const cuda::Graph graph(queue, [&] {
    for (int i = 0; i < kRuns; ++i) run(i);
  });
  double best = 1e9;
  for (int i = 0; i < kTries + 1; ++i) {
    const Stopwatch clock;
    graph.launch(queue);
    queue.wait();
    if (i > 0) best = std::min(best, clock.seconds() / kRuns);
  }
  return best;
}

void DeviceComm::choose_ways() {
  const std::string nccl = nccl_ ? "NCCL " + Nccl::version() : "";
  if (!links_ && !nccl_)
    throw make_error(ErrorKind::device, "ranks", "ranks that share a GPU need peer memory: {}",
                     why_no_links_);
  if (!links_) {
    ways_ = fmt::format("{}; no peer memory: {}", nccl, why_no_links_);
    return;
  }
  most_by_peers_ = kCapacity;
  if (!nccl_) {
    ways_ = "peer memory";
    most_by_peers_ = INT64_MAX;
    return;
  }
  // Larger ones go by NCCL from the first size on at which that is faster.
  cuda::Queue queue(device_);
  float* const memory = static_cast<float*>(cuda::allocate(device_, kCapacity * sizeof(float)));
  int64_t most = 0;
  std::string row;  // the smallest, for people
  for (int64_t n = 4096; n <= kCapacity; n *= 2) {
    const Tensor x(memory, DType::f32, {n}, {Device::Kind::cuda, device_});
    const double by_peers =
        seconds_of(queue, [&](int) { ops::peer_sum(*links_, x, queue.stream()); });
    const double by_nccl = seconds_of(queue, [&](int) { nccl_->sum(memory, n, queue.stream()); });
    if (row.empty())
      row = fmt::format("{} numbers {:.1f} us, NCCL {:.1f}", n, 1e6 * by_peers, 1e6 * by_nccl);
    // Rank 0's times count: all ranks must do the same.
    if (group_->agree(static_cast<uint8_t>(by_peers > by_nccl)) != 0) break;
    most = n;
  }
  cuda::free_memory(memory);
  most_by_peers_ = most;
  ways_ = most == 0 ? nccl
                    : fmt::format("peer memory up to {} KiB ({}), else {}",
                                  most * static_cast<int64_t>(sizeof(float)) / 1024, row, nccl);
}

DeviceComm::~DeviceComm() {
  std::memset(abort_.data(), 0xff, abort_.size());
  for (void* const p : opened_) cuda::close_shared(p);
  if (inbox_ != nullptr) cuda::free_memory(inbox_);
  for (void* const p : own_parts_) cuda::free_memory(p);
}

void DeviceComm::sum(const Tensor& x, Stream stream) {
  if (links_ && x.elements() <= most_by_peers_)
    ops::peer_sum(*links_, x, stream);
  else
    nccl_->sum(x.as<float>(), x.elements(), stream);
}

void DeviceComm::gather(void* all, size_t part_bytes, Stream stream) {
  const auto n = static_cast<int64_t>(part_bytes / sizeof(float));
  if (links_ && n <= most_by_peers_)
    ops::peer_gather(*links_, static_cast<float*>(all), n, stream);
  else
    nccl_->gather(all, part_bytes, stream);
}

}  // namespace tandem::ranks
