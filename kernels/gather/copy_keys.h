#pragma once
// Copies of chosen keys and values into separate pages: contract. A GPU's parameters point into
// device memory, or where keys are read, into pinned memory of the host.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

struct CopyKeysParams {
  // Pools of one layer, [pages, n_kv_heads, 64, d] each, 16-byte aligned; those written to are
  // others than those read.
  void *k_to, *v_to;
  const int32_t* to_pages;  // [ceil(n / 64)] pages there: keys of list entry i go to row i % 64 of
                            // page to_pages[i / 64], those of each KV head to its own rows
  const void *k_from, *v_from;
  const int32_t* from_pages;  // page table of the sequence
  const int32_t* ids;  // of KV head h at h * id_stride: [ceil(n / run)] runs of tokens, the last of
                       // which may be read in part: entry i is token ids[i / run] * run + i % run
  int64_t id_stride;
  int run = 1;  // tokens
  int n, n_kv_heads;
  int row_bytes;  // of one token and head, an even number
};

/// Copies the keys and values that the lists of a layer's KV heads name. Rows of the last page
/// after them stay as they are. On the CPU those of some KV heads.
/// cost     reads and writes 2 n_kv_heads n row_bytes
/// errors   none (preconditions checked by the caller)
using CopyKeysFn = void(const CopyKeysParams&, Range kv_heads);
CopyKeysFn copy_keys_cpu;
void copy_keys_cuda(const CopyKeysParams&, Stream);

}  // namespace tandem
