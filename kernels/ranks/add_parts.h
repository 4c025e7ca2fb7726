#pragma once
#include <cstdint>

#include "kernels/ranks/peer_sum.h"

namespace tandem {

/// Parts of a sum in the memory of each rank's GPU, which all read. Two sets take turns, so that
/// one is written while others still read the one before; who uses a set uses the other next.
struct PartLinks {
  const void* parts[kMostPeers];  // [n] bf16 of each rank, as this GPU sees them
  uint32_t* flags[kMostPeers];    // [n_ranks] of each rank: the turn up to which others have parts
  uint32_t* turn;                 // [2] of this GPU, 0 at first: its turns so far, and a count
  const uint32_t* abort;          // as PeerLinks'
  int rank, n_ranks;
};

struct AddPartsParams {
  PartLinks links;
  float* x;   // [n]
  int64_t n;  // a multiple of 8; 16-byte aligned, as are the parts
};

/// x += the parts of all ranks, in the order of ranks.
/// numerics f32 sums of the rounded parts; the same bits on all ranks with the same x
/// cost     reads each other rank's part over the link once
/// errors   none: waits for ranks that do not call, until links.abort
void add_parts_cuda(const AddPartsParams&, Stream);

}  // namespace tandem
