#pragma once
// Clusters of keys with similar values, and the weights of clusters, on a GPU: contract. Pointers
// lie in device memory. Clusters are made as lib/kv/policies/value_clusters.h says, with its bits.
#include "kernels/code/choose_coded.h"
#include "kernels/code/tail_means.h"

namespace tandem {

/// The clusters of one layer.
struct DeviceClusters {
  // A cell of cluster_cell_bytes(d) per slot s and KV head h, number s * slot_stride + h *
  // head_stride.
  uint8_t* cells;
  int64_t slot_stride, head_stride;
  // A byte per block b, KV head h and key i, at b * id_block_stride + h * id_head_stride + i.
  uint8_t* ids;
  int64_t id_block_stride, id_head_stride;
};

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

struct ClusterTailsParams {
  ChooseCodedParams choice;  // made with tail_scores
  DeviceClusters clusters;
  float* masses;  // out: a weight a cluster, list i's from i * mass_stride on, as ListTails says
  int64_t mass_stride;
};
/// Sums the weights of the keys that a list does not choose, none above the threshold's.
/// numerics integers: the same bits on every run
/// cost     a block a list: reads its scores once
void cluster_tails_cuda(const ClusterTailsParams&, Stream);

}  // namespace tandem
