#include "kernels/tree/traverse_trees.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/sample/row_split.h"

namespace tandem::cuda {
namespace {

/// Of all launches with that vocabulary.
size_t bytes_before_nodes(const Gpu& gpu, int vocab) {
  if (gpu.isa == GpuIsa::hopper) return kTicketBytes;
  const RowGroups groups = split_among_groups(gpu, vocab, 1, kMostPublishedBytes);
  const size_t data = groups.split.part_bytes() * 3 + mark_bytes(groups.split);
  const auto blocks = static_cast<size_t>(groups.n) * static_cast<size_t>(groups.split.parts);
  return kRowCounterBytes + blocks * (kMostPublishedBytes + (data > row_room(gpu) ? data : 0));
}

}  // namespace

int64_t nodes_begin(const Gpu& gpu, const VerifyTreesParams& p) {
  TANDEM_CHECK(p.workspace != nullptr, "verifying {} sequences needs a workspace", p.n_seqs);
  return static_cast<int64_t>(bytes_before_nodes(gpu, p.vocab));
}

size_t verify_memory_bytes(const Gpu& gpu, AcceptBy accept_by, int vocab, int max_seqs,
                           int max_nodes) {
  const size_t walk = row_memory_bytes(gpu, vocab, max_seqs, 3);
  if (!goes_by_sequences(accept_by) && !is_lossy(accept_by)) return walk;
  const size_t states = static_cast<size_t>(max_nodes) * (sizeof(NodeLink) + sizeof(NodeRecord)) +
                        static_cast<size_t>(max_seqs) * sizeof(TraversalSeq);
  return std::max(walk, bytes_before_nodes(gpu, vocab) + states);
}

}  // namespace tandem::cuda
