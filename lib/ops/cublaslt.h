#pragma once
#include <string>
#include <vector>

#include "ops/linear_choices.h"

// What dense layers use of cuBLASLt. Errors: kind device, or memory, with the library's words.
namespace tandem::ops::cublaslt {

/// Of the library that this process has loaded.
std::string version();

/// What a product works on, of the shapes that its role says.
struct Operands {
  void* y;           // [rows, out]
  const void* x;     // [rows, in]
  const void* w;     // [out, in]
  const void* bias;  // [out] in y's type, or null
  void* workspace;   // 256-byte aligned
  size_t workspace_bytes;
};

/// Algorithms that the library expects to be fast, the fastest first; all of them sum split parts
/// in a fixed order and in f32.
std::vector<LinearChoice::Algorithm> candidates(int device, const LinearProduct& product,
                                                size_t workspace_bytes, int most);
/// Whether an algorithm, perhaps from a file, can run the product.
bool can_run(int device, const LinearProduct& product, const LinearChoice::Algorithm& algorithm,
             size_t workspace_bytes);
void run(int device, const LinearProduct& product, const LinearChoice::Algorithm& algorithm,
         const Operands& operands, Stream stream);

}  // namespace tandem::ops::cublaslt
