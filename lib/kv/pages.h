#pragma once
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

    /// Bytes of K and V of one page in all layers.
    size_t page_bytes() const;
  };
  /// prefix   names the pools
  static void plan(const Spec& spec, const std::string& prefix, MemoryPlan& plan);

  Pages(const Spec& spec, const std::string& prefix, Arena& arena);

  const Spec& spec() const { return spec_; }
  /// Pools of the i-th layer, [n_pages, n_kv_heads, 64, head_dim].
  Tensor k(int i) const { return pool(k_, i); }
  Tensor v(int i) const { return pool(v_, i); }
  /// All of them, as kernels take them.
  PagePools pools() const;

 private:
  Tensor pool(char* base, int i) const;

  Spec spec_;
  char *k_, *v_;  // [n_layers, n_pages, n_kv_heads, 64, head_dim]
};

/// Copies as many bytes as both have.
/// queue    of the GPU that one of them may be on, or both: the copy is work on it
void copy_bytes(const Tensor& to, const Tensor& from, cuda::Queue* queue);

}  // namespace tandem::kv
