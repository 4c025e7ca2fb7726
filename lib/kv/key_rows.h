#pragma once
#include <cstdint>
#include <cstring>
#include <span>

#include "base/convert.h"
#include "base/page.h"
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

/// The keys, or the values, of one sequence under one KV head of a layer.
class KeyRows {
 public:
  /// pool     [n_pages, n_kv_heads, 64, head_dim]
  /// pages    page table of the sequence
  /// scales   of rows of eight bits, that of row i at scales[2 i]; null: the pool is of a float type
  /// dtype    the model's where there are scales
  KeyRows(const Tensor& pool, const int32_t* pages, int kv_head, const float* scales = nullptr,
          DType dtype = DType::f32)
      : pool_(pool),
        pages_(pages),
        kv_head_(static_cast<size_t>(kv_head)),
        scales_(scales),
        dtype_(scales == nullptr ? pool.dtype() : dtype) {}

  /// Of the model.
  DType dtype() const { return dtype_; }
  size_t head_dim() const { return static_cast<size_t>(pool_.size(3)); }
  /// Key `t` as f32, [head_dim]; of eight bits the row of dtype that they stand for, so that an
  /// index does not depend on where and when it is made.
  void read(int t, float* out) const {
    const size_t d = head_dim();
    const size_t row =
        (static_cast<size_t>(pages_[t / kPageTokens]) * static_cast<size_t>(pool_.size(1)) +
         kv_head_) *
            kPageTokens +
        static_cast<size_t>(t % kPageTokens);
    if (scales_ != nullptr) return read_eight_bits(row, out);
    read_vector(static_cast<const char*>(pool_.raw()) + row * d * dtype_bytes(pool_.dtype()),
                pool_.dtype(), {out, d});
  }

 private:
  void read_eight_bits(size_t row, float* out) const {
    const size_t d = head_dim();
    const auto* numbers = static_cast<const int8_t*>(pool_.raw()) + row * d;
    for (size_t c = 0; c < d; ++c) {
      const float x = static_cast<float>(numbers[c]) * scales_[2 * row];
      out[c] = dtype_ == DType::bf16 ? to_float(to_bf16(x)) : x;
    }
  }

  Tensor pool_;
  const int32_t* pages_;
  size_t kv_head_;
  const float* scales_;
  DType dtype_;
};

}  // namespace tandem::kv
