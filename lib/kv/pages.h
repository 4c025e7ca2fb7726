#pragma once
#include <cstddef>
#include <string>

#include "ops/paging.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"
#include "tensor/tensor.h"

namespace tandem::kv {

/// Where keys and values of some layers lie: pools of pages of 64 tokens on one device. A page id
/// stands for the same tokens in all of them.
class Pages {
 public:
  struct Spec {
    int n_layers = 0;
    int n_kv_heads = 0;
    int head_dim = 0;
    DType dtype = DType::bf16;
    int n_pages = 0;
    Device device = {};
    /// Rows are whole numbers of eight bits and a scale (kernels/page/eight_bit_rows.h), in host
    /// memory; pages of dtype are copied from there and to there on `copied_by`.
    bool eight_bit = false;
    Device copied_by = {};

    /// Bytes of K and V of one page in all layers, scales left out, and of their scales.
    size_t page_bytes() const;
    size_t page_scale_bytes() const;
    /// Of one token's key under one KV head, its scale included.
    size_t row_bytes() const;
  };
  /// prefix   names the pools
  static void plan(const Spec& spec, const std::string& prefix, MemoryPlan& plan);

  Pages(const Spec& spec, const std::string& prefix, Arena& arena);
  /// In the memory of others from one of their pages on, both of one layer: who uses which when is
  /// for the caller to say.
  Pages(const Spec& spec, const Pages& in, int32_t first);

  const Spec& spec() const { return spec_; }
  /// Pools of the i-th layer, [n_pages, n_kv_heads, 64, head_dim], of eight bits as u8.
  Tensor k(int i) const { return pool(k_, i); }
  Tensor v(int i) const { return pool(v_, i); }
  /// Of the i-th layer, [n_pages, n_kv_heads, 64, 2]: of a token's key and value, which a reader of
  /// both has in one line. Null unless eight_bit.
  float* scales(int i) const;
  /// All of them, as kernels take them; scales are left out.
  PagePools pools() const;
  /// Copies a page in all layers.
  void copy_page(int32_t from, int32_t to, Stream stream) const;
  /// A GPU's memory that pages pass through as they become narrow or wide, as many as
  /// staging_pages() at a time: their numbers, of keys or of values, and scales of both.
  int staging_pages() const;
  Tensor staged_rows(int n_pages) const;
  float* staged_scales() const;

 private:
  Tensor pool(char* base, int i) const;

  Spec spec_;
  char *k_, *v_;             // [n_layers, n_pages, n_kv_heads, 64, head_dim]
  float* scales_ = nullptr;  // [n_layers, n_pages, n_kv_heads, 64, 2]
  char* staging_ = nullptr;
};

/// Copies as many bytes as both have.
/// queue    of the GPU that one of them may be on, or both: the copy is work on it
void copy_bytes(const Tensor& to, const Tensor& from, cuda::Queue* queue);

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
