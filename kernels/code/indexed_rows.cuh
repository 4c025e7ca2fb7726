#pragma once
// Keys and values of the tokens that an index is made of.
#include "base/page.h"
#include "kernels/code/device_codes.h"
#include "kernels/cuda/number.cuh"

namespace tandem {

/// A key or a value of type T, or of eight bits that stand for one.
template <class T>
class KeyRow {
 public:
  /// scales   of keys, or of values; null: none
  __device__ KeyRow(const void* pool, const float* scales, const IndexedTokens& t, int head,
                    int token, int d) {
    const int64_t page = t.pages[token / kPageTokens];
    const int64_t row = (page * t.n_kv_heads + head) * kPageTokens + token % kPageTokens;
    if (scales != nullptr) {
      numbers_ = static_cast<const int8_t*>(pool) + row * d;
      scale_ = scales[2 * row];
    } else {
      row_ = static_cast<const T*>(pool) + row * d;
    }
  }
  __device__ float operator[](int c) const {
    if (numbers_ == nullptr) return cuda::to_float(row_[c]);
    return cuda::to_float(cuda::from_float<T>(static_cast<float>(numbers_[c]) * scale_));
  }

 private:
  const T* row_ = nullptr;
  const int8_t* numbers_ = nullptr;
  float scale_ = 0;
};

template <class T>
__device__ KeyRow<T> key_of(const IndexedTokens& t, int head, int token, int d) {
  return {t.k_pool, t.scales, t, head, token, d};
}

template <class T>
__device__ KeyRow<T> value_of(const IndexedTokens& t, int head, int token, int d) {
  return {t.v_pool, t.scales == nullptr ? nullptr : t.scales + 1, t, head, token, d};
}

}  // namespace tandem
