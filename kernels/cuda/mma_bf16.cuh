#pragma once
// Products of 16 x 16 by 16 x 8 bf16 tiles in one warp, accumulated in f32, and the loads of their
// operands. Lane 4 g + t holds of
//   A [16, 16]: a0 (g, 2t), a1 (g + 8, 2t), a2 (g, 2t + 8), a3 (g + 8, 2t + 8), each with its right
//               neighbour in the upper half;
//   B [16, 8]:  b0 (2t, g), b1 (2t + 8, g), each with the element below it in the upper half;
//   C [16, 8]:  c0, c1 (g, 2t) and right neighbour, c2, c3 (g + 8, 2t) and right neighbour.
#include <cuda_bf16.h>
#include <stdint.h>

namespace tandem::cuda {

__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8 x 8 tiles; lane 8 i + r names the address of row r of tile i. Lane 4 g + t receives
/// elements (g, 2t) and (g, 2t + 1) of each.
__device__ inline void load_tiles(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// As load_tiles, of the transposed tiles: elements (2t, g) and (2t + 1, g).
__device__ inline void load_tiles_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Two numbers rounded to bf16, the first in the lower half.
__device__ inline uint32_t pack_bf16(float lower, float upper) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(upper), "f"(lower));
  return packed;
}

}  // namespace tandem::cuda
