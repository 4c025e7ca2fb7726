#pragma once
// Where matmul runs on a GPU. Shapes and dtypes have been checked there.
#include "ops/matmul.h"

namespace tandem::ops::matmul_cuda {

void run(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream);
void tune(const MatmulArgs& args, std::span<std::byte> workspace, Stream stream);

}  // namespace tandem::ops::matmul_cuda
