#pragma once
#include <cstdint>

#include "base/types.h"

namespace tandem {

/// Ranks whose GPUs write into each other's memory, at most.
inline constexpr int kMostPeers = 16;
/// Numbers that a block sends, two a thread.
inline constexpr int kPeerBlockNumbers = 512;

/// What the GPUs of several ranks share. Each has an inbox, in two halves that take turns, and in a
/// half a place for the numbers of every rank. Numbers travel in words of 16 bytes, two of them
/// each with the count of its block's turns, so that they need no other signal: who reads the count
/// has the number. A half is written again only after the other has been read, which says that this
/// one was.
struct PeerLinks {
  void*
      inboxes[kMostPeers];  // [2][n_ranks][capacity / 2] words of each rank, as this GPU sees them
  uint32_t* turns;          // [capacity / kPeerBlockNumbers] of this GPU, 0 at first
  const uint32_t* abort;    // not 0: give up, and leave the numbers alone; in mapped host memory
  int rank, n_ranks;
  int64_t capacity;  // numbers; a multiple of kPeerBlockNumbers
};

struct PeerSumParams {
  PeerLinks links;
  float* x;   // [n], replaced by the sum
  int64_t n;  // <= capacity
};

/// x of every rank becomes the sum of all, in the order of ranks.
/// numerics the same bits on all ranks, and of a number wherever it stands
/// cost     each number crosses the link to every other rank once, in twice its bytes
/// errors   none: waits for ranks that do not call, until links.abort
void peer_sum_cuda(const PeerSumParams&, Stream);

struct PeerGatherParams {
  PeerLinks links;
  float* all;      // [n_ranks][stride], with the own part in its place
  int64_t stride;  // numbers
  int64_t n;       // of a part, that are sent; <= capacity
};
/// Each rank's part, to all ranks; otherwise as peer_sum_cuda.
void peer_gather_cuda(const PeerGatherParams&, Stream);

}  // namespace tandem
