// Main of the GPU tests: without a GPU they are skipped, which ctest shows (exit status 77).
#include "run_tests.h"
#include "tensor/cuda.h"

int main(int argc, char** argv) {
  return tandem::test::run_tests(argc, argv, [] {
    return tandem::cuda::device_count() == 0 ? tandem::cuda::why_none() : std::string();
  });
}
