#pragma once
#include <string>

#include "base/error.h"

namespace tandem::cuda {

/// The error that reports a call of the CUDA runtime that returned `code`, a cudaError_t: kind
/// memory where memory was short, else device.
/// what     what could not be done, such as "cannot use cuda:0"
/// last     the operation that was put on a stream last
Error error_of(int code, const std::string& what, const char* last);

}  // namespace tandem::cuda
