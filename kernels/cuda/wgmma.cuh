#pragma once
// Hopper's matrix instruction of a warpgroup (wgmma): D[64, N] += A[64, 16] B[16, N], bf16 with f32
// sums, asynchronous. B and, in the _ss form, A come from shared memory with the 128-byte swizzle.
//
// Registers of a thread, w = warp of the group, g = lane / 4, t = lane % 4:
//   D  d[4j + e] is row 16 w + g, column 8 j + 2 t + e; d[4j + 2 + e] the same of row 16 w + g + 8
//   A  a[0..3], two bf16 each, are columns (2 t, +1) of rows g and g + 8, then columns (2 t + 8,
//   +1)
// so that D of columns 16 k .. 16 k + 15 packed in pairs is A of step k.
#include "kernels/cuda/mbarrier.cuh"

namespace tandem::cuda {

inline constexpr int kWarpgroup = 128;     // threads
inline constexpr int kSwizzleRow = 128;    // bytes of a swizzled row: 64 bf16
inline constexpr int kSwizzleAtom = 1024;  // bytes of eight such rows

/// Where an operand lies. `start` is an address in shared memory whose atom is aligned to 1024
/// bytes; a step inside a row or to a later group of eight rows adds to it.
///   K contiguous (A, or B given as [N, K]): groups of eight rows of M or N lie kSwizzleAtom apart,
///     16 of K are 32 bytes; `apart` is not used
///   N contiguous (B given as [K, N]): groups of eight rows of K lie kSwizzleAtom apart, 16 of K
///   are
///     2048 bytes; columns [64 c, 64 c + 64) of N begin c * apart bytes further
__device__ inline uint64_t wgmma_operand(uint32_t start, uint32_t apart) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroups = uint64_t{kSwizzleAtom / 16} << 32;
  return kSwizzle128 | kGroups | (uint64_t{apart / 16} << 16) | ((start & 0x3ffff) / 16);
}

/// Before the first wgmma after registers that it reads or adds to were written.
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Ends a group of wgmma that is waited for together.
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups are under way. The registers of finished ones are then
/// touched with wgmma_done, which keeps the compiler from reading them earlier.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
__device__ inline void wgmma_done(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ inline void wgmma_done(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
/// Says that nothing has written these registers, before products that do not add to them: earlier
/// arithmetic in them would otherwise make the assembler wait for all that is under way.
template <int kCount>
__device__ inline void wgmma_fresh(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(d[i]));
}

// clang-format off
// Operands of inline assembly cannot be listed by a loop: registers of D by name, and as operands.
#define TANDEM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TANDEM_NAMES_16 TANDEM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_NAMES_32 \
  TANDEM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_NAMES_48 \
  TANDEM_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define TANDEM_NAMES_64 \
  TANDEM_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_NAMES_128 \
  TANDEM_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, " \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TANDEM_EIGHT(d, i)                                                                  \
  "+f"(d[(i) + 0]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define TANDEM_SUMS_8(d) TANDEM_EIGHT(d, 0)
#define TANDEM_SUMS_16(d) TANDEM_SUMS_8(d), TANDEM_EIGHT(d, 8)
#define TANDEM_SUMS_32(d) TANDEM_SUMS_16(d), TANDEM_EIGHT(d, 16), TANDEM_EIGHT(d, 24)
#define TANDEM_SUMS_48(d) TANDEM_SUMS_32(d), TANDEM_EIGHT(d, 32), TANDEM_EIGHT(d, 40)
#define TANDEM_SUMS_64(d) TANDEM_SUMS_48(d), TANDEM_EIGHT(d, 48), TANDEM_EIGHT(d, 56)
#define TANDEM_SUMS_128(d)                                                                 \
  TANDEM_SUMS_64(d), TANDEM_EIGHT(d, 64), TANDEM_EIGHT(d, 72), TANDEM_EIGHT(d, 80),        \
      TANDEM_EIGHT(d, 88), TANDEM_EIGHT(d, 96), TANDEM_EIGHT(d, 104), TANDEM_EIGHT(d, 112), \
      TANDEM_EIGHT(d, 120)

/// D[64, n] (+)= A B with B given as [N, K], n / 2 sums a thread; `add` false: the old D is not
/// read. The last arguments are the numbers of the operands after the sums.
#define TANDEM_WGMMA_SS(n, sums, at_a, at_b, at_add)                                         \
  __device__ inline void wgmma_ss(float (&d)[sums], uint64_t a, uint64_t b, bool add) {      \
    asm volatile(                                                                            \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_add ", 0;\n"                                \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" TANDEM_NAMES_##sums     \
        "}, %" #at_a ", %" #at_b ", p, 1, 1, 0, 0;\n}"                                       \
        : TANDEM_SUMS_##sums(d)                                                              \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                       \
  }
TANDEM_WGMMA_SS(16, 8, 8, 9, 10)
TANDEM_WGMMA_SS(32, 16, 16, 17, 18)
TANDEM_WGMMA_SS(64, 32, 32, 33, 34)
TANDEM_WGMMA_SS(96, 48, 48, 49, 50)
TANDEM_WGMMA_SS(128, 64, 64, 65, 66)

/// D[64, n] += A B with A in registers, whose operands are named, and B given as [K, N].
#define TANDEM_WGMMA_RS(n, sums, names_a, at_b)                                              \
  __device__ inline void wgmma_rs(float (&d)[sums], const uint32_t* a, uint64_t b) {         \
    asm volatile(                                                                            \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" TANDEM_NAMES_##sums     \
        "}, {" names_a "}, %" #at_b ", 1, 1, 1, 1;"                                          \
        : TANDEM_SUMS_##sums(d)                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                               \
  }
TANDEM_WGMMA_RS(64, 32, "%32, %33, %34, %35", 36)
TANDEM_WGMMA_RS(128, 64, "%64, %65, %66, %67", 68)
TANDEM_WGMMA_RS(256, 128, "%128, %129, %130, %131", 132)
/// D[64, n] (+)= A B with A in registers and B given as [N, K].
#define TANDEM_WGMMA_RS_NK(n, sums, names_a, at_b, at_add)                                   \
  __device__ inline void wgmma_rs_nk(float (&d)[sums], const uint32_t (&a)[4], uint64_t b,   \
                                     bool add) {                                             \
    asm volatile(                                                                            \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_add ", 0;\n"                                \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" TANDEM_NAMES_##sums     \
        "}, {" names_a "}, %" #at_b ", p, 1, 1, 0;\n}"                                       \
        : TANDEM_SUMS_##sums(d)                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));   \
  }
TANDEM_WGMMA_RS_NK(16, 8, "%8, %9, %10, %11", 12, 13)
TANDEM_WGMMA_RS_NK(32, 16, "%16, %17, %18, %19", 20, 21)
TANDEM_WGMMA_RS_NK(64, 32, "%32, %33, %34, %35", 36, 37)
// clang-format on

#undef TANDEM_WGMMA_SS
#undef TANDEM_WGMMA_RS
#undef TANDEM_WGMMA_RS_NK
#undef TANDEM_EIGHT

}  // namespace tandem::cuda
