#pragma once
#include <span>
#include <vector>

#include "decode/engine.h"

namespace tandem::decode {

/// A tensor of a saved state whose rows have a piece for each head, of which a rank has some.
struct HeadRows {
  size_t n_rows = 0;
  size_t head_bytes = 0;  // of one head in a row
  /// Which heads a rank has.
  model::Shard::Part model::Shard::*part = &model::Shard::kv_heads;
  int n_heads = 0;  // of all ranks

  size_t row_bytes() const { return static_cast<size_t>(n_heads) * head_bytes; }
};

/// The whole tensor, out of what each rank has of it: on all ranks, which call it together.
/// own      [n_rows][heads of this rank][head_bytes]
std::vector<std::byte> join_heads(std::span<const std::byte> own, const HeadRows& rows,
                                  const ModelFiles& files, Comm& comm);

}  // namespace tandem::decode
