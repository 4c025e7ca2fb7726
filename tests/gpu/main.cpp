// Main of the GPU tests: without a GPU they are skipped, which ctest shows (exit status 77).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "base/cpu_features.h"
#include "base/error.h"
#include "tensor/cuda.h"
#include "tensor/gpu_isa.h"

namespace {

/// The value of an environment variable, null where it is empty or not set.
const char* value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (const char* isa = value_of("TANDEM_ISA")) tandem::lower_isa(isa);
    if (const char* isa = value_of("TANDEM_GPU_ISA")) tandem::cuda::force_gpu_isa(isa);
  } catch (const tandem::Error& e) {
    std::fprintf(stderr, "error: %s\n  hint: %s\n", e.what(), e.hint_text().c_str());
    return tandem::exit_status(e.kind());
  }
  if (tandem::cuda::device_count() == 0) {
    std::fprintf(stderr, "skipped: %s\n", tandem::cuda::why_none().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
