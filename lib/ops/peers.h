#pragma once
#include "kernels/ranks/add_parts.h"
#include "kernels/ranks/peer_sum.h"
#include "tensor/tensor.h"

/// Sums over ranks whose GPUs write into each other's memory; work on the stream.
namespace tandem::ops {

/// x becomes the ranks' sum, in as many turns as the inboxes need.
/// shapes   x [..] f32
void peer_sum(const PeerLinks& links, const Tensor& x, Stream stream);
/// Each rank's part, to all ranks.
/// shapes   all [n_ranks][n] f32, with the own part in its place
void peer_gather(const PeerLinks& links, float* all, int64_t n, Stream stream);

/// x += the ranks' parts.
/// shapes   x [..] f32
void add_parts(const PartLinks& links, const Tensor& x, Stream stream);

}  // namespace tandem::ops
