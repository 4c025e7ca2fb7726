// Main of the GPU tests: without a GPU they are skipped, which ctest shows (exit status 77).
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "tensor/cuda.h"

int main(int argc, char** argv) {
  if (tandem::cuda::device_count() == 0) {
    std::fprintf(stderr, "skipped: %s\n", tandem::cuda::why_none().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
