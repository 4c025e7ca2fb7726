#pragma once
#include <cstdint>

#include "tensor/tensor.h"

namespace tandem::ops {

/// The layout of a step's ragged batch, as kernels read it: pointers into the memory of one device.
/// kernels/attention/attention.h defines how the arrays act together.
struct StepArrays {
  Device device = {};
  int n_seqs = 0;                        // B
  int n_rows = 0;                        // R
  int max_rows_a_seq = 0;                // most rows of one sequence
  int max_pages = 0;                     // columns of page_table
  int mask_words = 0;                    // 0 for chains
  bool drafted = false;                  // rows of trees or drafted chains: few beside the keys
  const int32_t* slot = nullptr;         // [B] sequence of the cache
  const int32_t* row_begin = nullptr;    // [B + 1]
  const int32_t* base = nullptr;         // [B] committed tokens before the step
  const int32_t* tentative = nullptr;    // [B] rows of earlier steps behind base; null: none
  const int32_t* pos = nullptr;          // [R] RoPE positions
  const int32_t* page_table = nullptr;   // [slots, max_pages] a row a sequence of the cache
  const int32_t* row_page = nullptr;     // [R] page that takes the row's K and V
  const int32_t* row_in_page = nullptr;  // [R] token slot inside it
  const uint64_t* tree_mask = nullptr;   // [R, mask_words]; null for chains
};

}  // namespace tandem::ops
