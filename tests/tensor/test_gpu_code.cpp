#include "tensor/gpu_code.h"

#include <doctest/doctest.h>

using namespace tandem;
using cuda::GpuCode;
using cuda::GpuFacts;

namespace {

const GpuCode kDefault{.machine = {"90a"}, .ptx = "80", .toolkit = 13000};

GpuFacts gpu(int major, int minor, int driver = 13000) {
  return {.name = "Card", .major = major, .minor = minor, .driver = driver};
}

/// "message | hint", or nothing.
std::string told(const GpuCode& code, const GpuFacts& facts) {
  const auto error = cuda::why_unfit(code, facts);
  if (!error) return "";
  CHECK(error->kind() == ErrorKind::device);
  CHECK(exit_status(error->kind()) == 6);
  return error->message() + " | " + error->hint_text();
}

}  // namespace

TEST_SUITE("tensor/gpu_code") {
  TEST_CASE("the default build runs on every GPU from Ampere on") {
    for (const auto& [major, minor] :
         {std::pair{8, 0}, {8, 6}, {8, 7}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}})
      CHECK(told(kDefault, gpu(major, minor)) == "");
    CHECK(told(kDefault, gpu(8, 6, 13020)) == "");
  }

  TEST_CASE("an older GPU") {
    CHECK(told(kDefault, gpu(7, 5)) ==
          "Card (compute capability 7.5) is not supported: tandem needs compute capability 8.0 "
          "(Ampere) or later | use --device cpu, or a newer GPU with --device cuda:N");
    CHECK(told(kDefault, gpu(6, 1, 12020)).find("(compute capability 6.1)") != std::string::npos);
  }

  TEST_CASE("a driver older than the toolkit's generation") {
    CHECK(
        told(kDefault, gpu(9, 0, 12080)) ==
        "the NVIDIA driver supports CUDA 12.8 at most, this build of tandem needs 13.0: update the "
        "driver | nvidia-smi shows the driver's version; use --device cpu if it cannot be updated");
    CHECK(cuda::why_driver_unfit(13000, 0) == "there is no NVIDIA driver");
    CHECK(cuda::why_driver_unfit(13010, 13000) == "");
  }

  TEST_CASE("a driver older than the PTX: machine code runs, PTX does not") {
    const GpuCode newer{.machine = {"90a", "86"}, .ptx = "80", .toolkit = 13020};
    CHECK(told(newer, gpu(9, 0)) == "");
    CHECK(told(newer, gpu(8, 6)) == "");
    CHECK(told(newer, gpu(8, 9)) == "");  // of the generation of 8.6
    CHECK(told(newer, gpu(8, 0)) ==
          "the NVIDIA driver supports CUDA 13.0 at most and cannot compile this build's PTX of "
          "CUDA 13.2 for Card (compute capability 8.0) | update the driver, or build with cmake "
          "-DTANDEM_CUDA_ARCHS=80");
    CHECK(told(newer, gpu(12, 0)).find("-DTANDEM_CUDA_ARCHS=120") != std::string::npos);
  }

  TEST_CASE("a build without code for the card") {
    const GpuCode hopper_only{.machine = {"90a"}, .ptx = "", .toolkit = 13000};
    CHECK(told(hopper_only, gpu(9, 0)) == "");
    CHECK(
        told(hopper_only, gpu(10, 0)) ==
        "this build of tandem has no code for Card (compute capability 10.0), only CUDA 13.0: "
        "machine code for sm_90a | build with cmake -DTANDEM_CUDA_ARCHS=100, or use --device cpu");
    const GpuCode later{.machine = {"89"}, .ptx = "89", .toolkit = 13000};
    CHECK(told(later, gpu(8, 6)).find("no code for Card") != std::string::npos);
    CHECK(told(later, gpu(9, 0)) == "");
    CHECK(told({.machine = {}, .ptx = "", .toolkit = 13000}, gpu(9, 0))
              .find("only CUDA 13.0: no code | build with cmake -DTANDEM_CUDA_ARCHS=90a") !=
          std::string::npos);
  }

  TEST_CASE("the code in words") {
    CHECK(cuda::code_text(kDefault) == "CUDA 13.0: machine code for sm_90a, PTX for compute_80");
    CHECK(cuda::code_text({.machine = {"80", "86"}, .ptx = "80", .toolkit = 13010}) ==
          "CUDA 13.1: machine code for sm_80, sm_86, PTX for compute_80");
    CHECK(cuda::code_text({.machine = {}, .ptx = "80", .toolkit = 13000}) ==
          "CUDA 13.0: PTX for compute_80");
  }
}
