#pragma once
// Where matmul runs on a GPU. Shapes and dtypes have been checked there.
#include "ops/cublaslt.h"
#include "ops/matmul.h"

namespace tandem::ops::matmul_cuda {

/// The library's algorithm for a product: the kept one, else what the library expects to be the
/// fastest. Looks it up once for each product.
/// errors   kind device: there is none
LinearChoice::Algorithm choose(const cublaslt::Product& product, int device);

void run(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream);
void tune(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream);
void tune(const cublaslt::Product& product, const cublaslt::Operands& operands, int device,
          Stream stream);

}  // namespace tandem::ops::matmul_cuda
