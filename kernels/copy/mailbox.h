#pragma once
// Notes between work on a GPU and the host that works in the midst of it: contract.
#include <stddef.h>

#include "base/types.h"

namespace tandem {

/// Of a mailbox in pinned host memory, which a GPU finds at the host's addresses. Each side writes
/// a line of its own.
struct MailboxFlags {
  alignas(64) uint32_t posted;    // number of the newest note, by the GPU
  alignas(64) uint32_t answered;  // number of the newest answer, by the host
  uint32_t aborted;               // not 0: no answer is coming, nothing waits any more
};

/// In a GPU's memory, zero at first.
struct MailboxState {
  uint32_t number;   // of the newest note: each is one more than that before, and wraps
  uint32_t tickets;  // blocks of a post that have copied
};

struct MailboxPart {
  void* to;          // 4-byte aligned, faster with 16
  const void* from;  // 4-byte aligned, faster with 16
  size_t bytes;      // a multiple of 4
};

inline constexpr int kMailboxParts = 3;

struct MailboxParams {
  MailboxPart parts[kMailboxParts];
  int n_parts;
  MailboxState* state;  // in the GPU's memory
  MailboxFlags* flags;  // in pinned host memory
};

/// Copies the parts to pinned host memory, where the host finds them as soon as it reads the
/// number of this note in flags->posted, one more than that of the note before. Everything that
/// earlier work of the stream wrote to pinned memory and fenced is there by then, too.
/// cost     microseconds of latency; for some hundred KB at most
/// errors   none (preconditions checked by the caller)
void post_cuda(const MailboxParams&, Stream);

/// Waits until the host has answered the newest note of the stream, or has given up answering; then
/// copies the parts from pinned host memory, unless it gave up. One await follows a post. Occupies
/// some blocks of the GPU while it waits.
/// errors   none (preconditions checked by the caller)
void await_cuda(const MailboxParams&, Stream);

}  // namespace tandem
