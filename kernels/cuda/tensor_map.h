#pragma once
// Descriptors of tensors for the copy engine, made on the host at launch and passed to kernels as
// __grid_constant__ parameters.
#include <cuda.h>
#include <stdint.h>

namespace tandem::cuda {

/// A row-major bf16 tensor of `rank` dimensions and the box that one copy moves. Dimension 0 is the
/// contiguous one.
struct TensorShape {
  int rank;                  // 1 to 5
  uint64_t size[5];          // elements
  uint64_t stride_bytes[5];  // of dimensions 1 and up; multiples of 16
  uint32_t box[5];           // elements; box[0] is 64, the 128 bytes of a swizzled row
};

/// Descriptor whose boxes land in shared memory with the 128-byte swizzle: 16-byte chunk c of row r
/// (of 128 bytes) lies at chunk c ^ (r % 8), as wgmma reads it. No memory is read, so the tensor
/// may be declared larger than it is if the kernel asks for no such box.
/// errors   kind device: the driver is too old, or refuses the shape
CUtensorMap tensor_map_bf16(const void* base, const TensorShape& shape);

/// The same of a dense matrix [rows, columns] for boxes of box_rows rows.
CUtensorMap swizzled_map(const void* matrix, int64_t rows, int columns, int box_rows);

/// Descriptor of dense rows of bytes for boxes [box_rows, box_bytes] that land as they are. Copies
/// name columns in units of 8 bytes; a box has at most 256 of them.
CUtensorMap plain_map(const void* matrix, int64_t rows, int64_t row_bytes, int box_rows,
                      int box_bytes);

}  // namespace tandem::cuda
