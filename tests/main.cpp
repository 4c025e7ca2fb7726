#include <cstdlib>

#include "run_tests.h"

int main(int argc, char** argv) {
  setenv("CUDA_VISIBLE_DEVICES", "",
         1);  // tools that tests start take the CPU, as where there is no GPU
  return tandem::test::run_tests(argc, argv);
}
