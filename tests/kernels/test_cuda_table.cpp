// The table of CUDA bodies, as it is compiled: needs no GPU.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "kernels/cuda_table.h"

using namespace tandem;
using cuda::GpuIsa;

TEST_SUITE("kernels/cuda_table") {
  TEST_CASE("every operation has a portable body, or a library that takes its place") {
    std::set<std::string> names, by_library, with_hoppers;
    size_t bytes = 0;
    cuda_table().each([&](const char* name, const auto& bodies) {
      CAPTURE(name);
      CHECK(names.insert(name).second);
      bytes += sizeof(bodies);
      CHECK((bodies.has(GpuIsa::portable) || bodies.library() != nullptr));
      CHECK((!bodies.has(GpuIsa::portable) || bodies.library() == nullptr));
      if (bodies.library() != nullptr) by_library.insert(name);
      if (bodies.has_hoppers()) {
        with_hoppers.insert(name);
        CHECK((bodies.body(GpuIsa::hopper) != bodies.body(GpuIsa::portable)));
      } else {
        CHECK((bodies.body(GpuIsa::hopper) == bodies.body(GpuIsa::portable)));
      }
    });
    CHECK(bytes == sizeof(CudaTable));  // each() leaves none out
    CHECK(by_library == std::set<std::string>{"tiled_linear"});
    // What a build for Hopper has, and a build without it has not.
    if (!with_hoppers.empty()) CHECK(with_hoppers.contains("skinny_linear"));
  }
}
