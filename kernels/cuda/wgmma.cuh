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

// Operands of inline assembly cannot be listed by a loop.
#define TANDEM_EIGHT(d, i)                                                                  \
  "+f"(d[(i) + 0]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// clang-format off
/// D[64, 16] (+)= A B with B given as [N, K]; `add` false: the old D is not read.
__device__ inline void wgmma_ss(float (&d)[8], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7"
      "}, %8, %9, p, 1, 1, 0, 0;\n}"
      : TANDEM_EIGHT(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// D[64, 32] (+)= A B with B given as [N, K]; `add` false: the old D is not read.
__device__ inline void wgmma_ss(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1, 0, 0;\n}"
      : TANDEM_EIGHT(d, 0), TANDEM_EIGHT(d, 8)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// D[64, 64] (+)= A B with B given as [N, K]; `add` false: the old D is not read.
__device__ inline void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : TANDEM_EIGHT(d, 0), TANDEM_EIGHT(d, 8), TANDEM_EIGHT(d, 16), TANDEM_EIGHT(d, 24)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// D[64, 96] (+)= A B with B given as [N, K]; `add` false: the old D is not read.
__device__ inline void wgmma_ss(float (&d)[48], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47"
      "}, %48, %49, p, 1, 1, 0, 0;\n}"
      : TANDEM_EIGHT(d, 0), TANDEM_EIGHT(d, 8), TANDEM_EIGHT(d, 16), TANDEM_EIGHT(d, 24),
        TANDEM_EIGHT(d, 32), TANDEM_EIGHT(d, 40)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// D[64, 128] (+)= A B with B given as [N, K]; `add` false: the old D is not read.
__device__ inline void wgmma_ss(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0;\n}"
      : TANDEM_EIGHT(d, 0), TANDEM_EIGHT(d, 8), TANDEM_EIGHT(d, 16), TANDEM_EIGHT(d, 24),
        TANDEM_EIGHT(d, 32), TANDEM_EIGHT(d, 40), TANDEM_EIGHT(d, 48), TANDEM_EIGHT(d, 56)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

/// D[64, 128] += A B with A in registers and B given as [K, N].
__device__ inline void wgmma_rs(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : TANDEM_EIGHT(d, 0), TANDEM_EIGHT(d, 8), TANDEM_EIGHT(d, 16), TANDEM_EIGHT(d, 24),
        TANDEM_EIGHT(d, 32), TANDEM_EIGHT(d, 40), TANDEM_EIGHT(d, 48), TANDEM_EIGHT(d, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// D[64, 64] += A B with A in registers and B given as [K, N].
__device__ inline void wgmma_rs(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : TANDEM_EIGHT(d, 0), TANDEM_EIGHT(d, 8), TANDEM_EIGHT(d, 16), TANDEM_EIGHT(d, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// clang-format on
#undef TANDEM_EIGHT

}  // namespace tandem::cuda
