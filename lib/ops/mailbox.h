#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/interrupt.h"
#include "kernels/copy/mailbox.h"
#include "kernels/cuda/bodies.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::ops {

/// Lets the host work in the midst of work that is on a GPU's queue, recorded in a graph or not:
/// the queue posts a note with what the host needs, goes on, and at some place waits for the
/// answer. The host receives the notes in their order and answers each. Numbers rise from note to
/// note, so that a graph that runs again never sees an old answer.
///
/// What keeps the host from answering, an exception or an interruption, must end in `abort`, or
/// the GPU waits for ever.
class Mailbox {
 public:
  /// name     of its items
  static void plan(const std::string& name, Device device, MemoryPlan& plan);
  Mailbox(const std::string& name, Arena& arena, const Exec& exec);

  // Work, at most kMailboxParts parts:
  /// Copies parts to pinned host memory and posts a note.
  void post(std::span<const MailboxPart> parts);
  /// Waits for the answer to the newest note, then copies parts from pinned host memory.
  void await(std::span<const MailboxPart> parts);

  // The host:
  /// Waits until the next note is there.
  /// errors   kind interrupted; kind device: the queue's work has failed
  void receive(const Interrupted& interrupted);
  /// What it asked for is in pinned memory.
  void answer();
  /// No answer is coming to any note of work that is on the queue: waits until that work is over,
  /// whose results mean nothing. The next note that is posted is received as usual. Where other
  /// mailboxes have notes on the same queue, `refuse` comes first, of each.
  void abort() noexcept;
  /// Lets work that waits for an answer go on, until `abort` returns.
  void refuse() noexcept;

 private:
  using Work = cuda::Bodies<void(const MailboxParams&, Stream)>;
  void put(const Work& work, const char* name, std::span<const MailboxPart> parts) const;

  Exec exec_;
  cuda::PinnedBuffer pinned_;
  MailboxFlags* flags_;
  MailboxState* state_;
  uint32_t received_ = 0;  // number of the newest note
};

}  // namespace tandem::ops
