#pragma once
#include <cstdint>
#include <cstring>
#include <span>

#include "base/convert.h"
#include "kv/step.h"
#include "tensor/tensor.h"

namespace tandem::kv {

/// A vector of the cache's dtype as f32.
inline void read_vector(const void* x, DType dtype, std::span<float> out) {
  if (dtype == DType::f32) {
    std::memcpy(out.data(), x, out.size_bytes());
    return;
  }
  const auto* from = static_cast<const bf16*>(x);
  for (size_t c = 0; c < out.size(); ++c) out[c] = to_float(from[c]);
}

/// The keys of one sequence under one KV head of a layer.
class KeyRows {
 public:
  /// pool [n_pages, n_kv_heads, 64, head_dim]; pages: page table of the sequence
  KeyRows(const Tensor& pool, const int32_t* pages, int kv_head)
      : pool_(pool), pages_(pages), kv_head_(static_cast<size_t>(kv_head)) {}

  DType dtype() const { return pool_.dtype(); }
  size_t head_dim() const { return static_cast<size_t>(pool_.size(3)); }
  /// Key `t` as f32, [head_dim].
  void read(int t, float* out) const {
    const size_t d = head_dim();
    const size_t row =
        (static_cast<size_t>(pages_[t / kPageTokens]) * static_cast<size_t>(pool_.size(1)) +
         kv_head_) *
            kPageTokens +
        static_cast<size_t>(t % kPageTokens);
    read_vector(static_cast<const char*>(pool_.raw()) + row * d * dtype_bytes(pool_.dtype()),
                pool_.dtype(), {out, d});
  }

 private:
  Tensor pool_;
  const int32_t* pages_;
  size_t kv_head_;
};

}  // namespace tandem::kv
