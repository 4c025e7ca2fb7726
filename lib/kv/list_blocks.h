#pragma once
#include <span>
#include <vector>

#include "kv/key_list.h"

namespace tandem::kv {

/// Lists are attended in blocks of keys, so that the work of a few heads divides among many
/// threads. Blocks follow from a list's length alone: bits depend neither on threads nor on timing.
inline constexpr int kMostListBlocks = 32;

/// Blocks of a list of `n` keys, 1 .. kMostListBlocks.
int n_list_blocks(int n);

/// The segments of the i-th of `n_blocks` blocks of a list.
void cut_block(std::span<const KeySegment> list, int n_blocks, int i,
               std::vector<KeySegment>& block);

/// Joins softmax states of disjoint keys, in their order.
/// shapes   o [d]; lse [1]; part_o [n, d]; part_lse [n] natural log
/// numerics f32 sums; a state without keys is left out
void join_states(float* o, float* lse, const float* part_o, const float* part_lse, int n, int d);

}  // namespace tandem::kv
