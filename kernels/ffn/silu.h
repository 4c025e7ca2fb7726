#pragma once
// The gate of silu_mul and of its backward pass. Included by ISA files only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

TANDEM_INLINE simd::Vec silu(simd::Vec gate) {
  return gate / (simd::set1(1.0f) + simd::exp(simd::zero() - gate));
}

}  // namespace
}  // namespace tandem
