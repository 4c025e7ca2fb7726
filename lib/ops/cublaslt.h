#pragma once
#include <string>
#include <vector>

#include "ops/linear_choices.h"

// What dense layers use of cuBLASLt, which the first call loads. Errors: kind device, also where it
// cannot be loaded, or memory, with the library's words.
namespace tandem::ops::cublaslt {

/// Of the library that is here.
std::string version();

/// Numbers in fp8 (e4m3) with f32 scales, one for a row, or for 128 numbers of one.
enum class Scales : uint8_t { none, rows, groups };

/// c [m, n] = scale op(a) op(b) + bias, or added to c; all row-major.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // numbers from row to row
  bool a_transposed = false, b_transposed = false;   // a is [k, m], b is [n, k]
  DType type = DType::bf16, c_type = DType::bf16;    // of a and b; of c
  Scales scales = Scales::none;                      // others: a and b are fp8, b transposed
  bool accumulate = false, bias = false;
  uint32_t a_alignment = 0, b_alignment = 0, c_alignment = 0;  // bytes, of every row

  auto operator<=>(const Product&) const = default;
};

/// The alignment, of 16 bytes at most, of rows `stride` numbers apart, the first of which is at
/// `address`.
uint32_t alignment(int64_t stride, DType type, uintptr_t address = 0);

struct Operands {
  void* c;
  const void *a, *b;
  const void* bias;  // [n] in c's type, with scales in bf16; or null
  void* workspace;   // 256-byte aligned
  size_t workspace_bytes;
  float scale = 1.0f;
  const float *a_scales = nullptr, *b_scales = nullptr;  // [k / 128][m], [k / 128][n]; or [m], [n]
};

/// Algorithms that the library expects to be fast, the fastest first; all of them sum split parts
/// in a fixed order and in f32.
std::vector<LinearChoice::Algorithm> candidates(int device, const Product& product,
                                                size_t workspace_bytes, int most);
/// Whether an algorithm, perhaps from a file, can run the product.
bool can_run(int device, const Product& product, const LinearChoice::Algorithm& algorithm,
             size_t workspace_bytes);
void run(int device, const Product& product, const LinearChoice::Algorithm& algorithm,
         const Operands& operands, Stream stream);

}  // namespace tandem::ops::cublaslt
