#pragma once
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace tandem::ops {

/// Copies n numbers from f16, bf16 or f32 (any alignment) to bf16 or f32: on all threads, or in a
/// GPU's memory, aligned to their element, as work on its stream.
void convert(void* out, DType to, const void* in, DType from, int64_t n, Stream stream = {});

/// Zeroes n numbers, on a GPU as work on its stream.
void clear(float* at, int64_t n, Stream stream = {});

/// Puts the columns of all parts side by side; the rest of the last is dropped.
/// shapes   out [rows, width] f32; parts [n, rows, part's width], n times that >= width
void join_columns(const Tensor& out, const Tensor& parts, Stream stream = {});

/// out[r] = table[ids[r]] in f32.
/// shapes   out [ids, dim]; table [V, dim] of type `from`, any alignment
void embed(float* out, const void* table, DType from, std::span<const int32_t> ids, int64_t dim);

/// Elements [first, first + n) of a random tensor, which seed and number name.
struct RandomPart {
  uint64_t seed = 0;
  uint32_t tensor = 0;
  int64_t first = 0, n = 0;
  float stddev = 1;
};

/// Writes part of a random tensor (kernels/embed/fill_random.h): into a GPU's memory as work on its
/// stream, or at once on all threads of the CPU where that is null.
void fill_random(void* out, DType to, const RandomPart& part, Stream stream = {});

}  // namespace tandem::ops
