#include "ops/mailbox.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "base/check.h"
#include "base/idle.h"
#include "kernels/cuda_table.h"

namespace tandem::ops {
namespace {

std::string state_of(const std::string& name) { return name + ".numbers"; }
std::string flags_of(const std::string& name) { return name + ".flags"; }

std::atomic_ref<uint32_t> shared(uint32_t& word) { return std::atomic_ref(word); }

}  // namespace

void Mailbox::plan(const std::string& name, Device device, MemoryPlan& plan) {
  plan.add(flags_of(name), sizeof(MailboxFlags));
  plan.add(state_of(name), sizeof(MailboxState), device);
}

Mailbox::Mailbox(const std::string& name, Arena& arena, const Exec& exec)
    : exec_(exec),
      pinned_(sizeof(MailboxFlags)),
      flags_(new (pinned_.data()) MailboxFlags{}),
      state_(static_cast<MailboxState*>(arena.take(state_of(name)))) {}

void Mailbox::put(const Work& work, const char* name, std::span<const MailboxPart> parts) const {
  TANDEM_CHECK(parts.size() <= size_t{kMailboxParts}, "a message of {} parts is too long",
               parts.size());
  MailboxParams p{};
  std::ranges::copy(parts, p.parts);
  p.n_parts = static_cast<int>(parts.size());
  p.state = state_;
  p.flags = flags_;
  work(p, exec_.stream());
  cuda::launched(name, exec_.stream());
}

void Mailbox::post(std::span<const MailboxPart> parts) { put(cuda_table().post, "post", parts); }

void Mailbox::await(std::span<const MailboxPart> parts) { put(cuda_table().await, "await", parts); }

void Mailbox::receive(const Interrupted& interrupted) {
  // A note takes microseconds; asking the driver or for signals takes about one.
  constexpr int kSpins = 4096;
  const uint32_t next = received_ + 1;
  const auto is_there = [&] {
    return static_cast<int32_t>(shared(flags_->posted).load(std::memory_order_acquire) - next) >= 0;
  };
  poll(interrupted);
  Idle idle;
  for (int spins = 1; !is_there(); ++spins) {
    idle.wait();
    if (spins % kSpins != 0) continue;
    poll(interrupted);
    // Throws if the work has failed. Done without a note would be a note too few.
    TANDEM_CHECK(!exec_.queue->idle() || is_there(), "the GPU ended without posting message {}",
                 next);
  }
  received_ = next;
}

void Mailbox::answer() { shared(flags_->answered).store(received_, std::memory_order_release); }

void Mailbox::refuse() noexcept { shared(flags_->aborted).store(1, std::memory_order_release); }

void Mailbox::abort() noexcept {
  refuse();
  try {
    exec_.queue->wait();
  } catch (const Error&) {
    // The GPU has stopped: nothing waits.
  }
  received_ = shared(flags_->posted).load(std::memory_order_acquire);
  shared(flags_->answered).store(received_, std::memory_order_release);
  shared(flags_->aborted).store(0, std::memory_order_release);
}

}  // namespace tandem::ops
