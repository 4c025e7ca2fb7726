#pragma once
// Plain number types shared by the library and the kernels. No functions and no STL here: this file
// is included by sources compiled with per-ISA flags, where an inline function could be emitted
// with instructions that other CPUs lack. Conversions are in base/convert.h.
#include <stdint.h>

namespace tandem {

struct bf16 {
  uint16_t bits;
};

struct f16 {
  uint16_t bits;
};

enum class DType : uint8_t { f32, bf16, f16, i32, i64, u8 };

/// A queue of work on a GPU (a cudaStream_t); null on the CPU, where calls return when they are
/// done.
struct Stream {
  void* handle = nullptr;
};

/// Half-open range of work items given to one thread.
struct Range {
  int begin;
  int end;
};

}  // namespace tandem
