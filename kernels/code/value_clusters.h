#pragma once
// Clusters of keys with similar values on a GPU: contract. Pointers lie in device memory. Clusters
// are made as lib/kv/policies/value_clusters.h says, with its bits.
#include "kernels/code/device_codes.h"
#include "kernels/code/tail_means.h"

namespace tandem {

/// Means [kValueClusters, d] bf16, centers [kValueClusters, d] s8, and the unit, of one head.
constexpr int64_t cluster_cell_bytes(int d) { return int64_t{3} * kValueClusters * d + 16; }

struct MakeClustersParams {
  DeviceClusters clusters;
  IndexedTokens tokens;
  int slot, d;
  int8_t* numbers;  // scratch [n_kv_heads, kClusterSample, cluster_words(d)] in words of four
};
/// Words of four coordinates of a value.
constexpr int cluster_words(int d) { return (d + 3) / 4; }
/// Makes the clusters of a slot by its tokens, all KV heads. d <= 256
void make_clusters_cuda(const MakeClustersParams&, Stream);

struct AssignClustersParams {
  DeviceClusters clusters;
  IndexedTokens tokens;
  int slot, d;
  int block, offset;  // as in CodeKeysParams
};
/// Writes the clusters of new tokens.
void assign_clusters_cuda(const AssignClustersParams&, Stream);

}  // namespace tandem
