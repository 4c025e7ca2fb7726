#pragma once
#include "kv/pages.h"

namespace tandem::kv {

/// Pages of the i-th layer of some, from one page id on.
struct PageRun {
  const Pages& pages;
  int i;
  int32_t first;
};

/// Copies the keys and values of n pages that follow each other in both. Rows of dtype that go to
/// eight bits are rounded, others come wide from there, and a row that goes back and forth keeps
/// its bytes.
/// queue    of the GPU that one of them may be on, or both: the copy is work on it
void copy_pages(const PageRun& to, const PageRun& from, int n, cuda::Queue* queue);

/// One page of keys, or of values, as rows of dtype in the caller's memory, which may lie in eight
/// bits in the pools; these are in host memory.
/// shapes   rows [n_kv_heads, 64, head_dim] of dtype
void read_page(const PageRun& page, bool values, void* rows);
void write_page(const PageRun& page, bool values, const void* rows);

}  // namespace tandem::kv
