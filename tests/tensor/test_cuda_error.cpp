#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include "tensor/cuda_error.h"

using namespace tandem;

TEST_SUITE("tensor/cuda_error") {
  TEST_CASE("a GPU that another process has to itself") {
    const Error e = cuda::error_of(cudaErrorDevicesUnavailable, "cannot use cuda:1", "none");
    CHECK(e.kind() == ErrorKind::device);
    CHECK(std::string(e.what()) ==
          "cuda: cannot use cuda:1: another process uses the GPU exclusively, or its compute mode "
          "is prohibited (cudaErrorDevicesUnavailable)");
    CHECK(e.hint_text().find("nvidia-smi -q -d COMPUTE") != std::string::npos);
    CHECK(e.hint_text().find("--device cuda:N") != std::string::npos);
  }

  TEST_CASE("a GPU whose memory others hold") {
    const Error e = cuda::error_of(cudaErrorMemoryAllocation, "cannot use cuda:0", "none");
    CHECK(e.kind() == ErrorKind::memory);
    CHECK(exit_status(e.kind()) == 5);
    CHECK(
        std::string(e.what()) ==
        "cuda: cannot use cuda:0: out of memory (cudaErrorMemoryAllocation); last operation: none");
    CHECK(e.hint_text().find("nvidia-smi") != std::string::npos);
  }

  TEST_CASE("a GPU that is lost in the midst of work") {
    for (const int code : {int{cudaErrorUnknown}, int{cudaErrorECCUncorrectable},
                           int{cudaErrorNvlinkUncorrectable}, int{cudaErrorHardwareStackError}}) {
      CAPTURE(code);
      const Error e = cuda::error_of(code, "work on the GPU failed", "await");
      CHECK(e.kind() == ErrorKind::device);
      CHECK(exit_status(e.kind()) == 6);
      CHECK(e.message().ends_with("): the GPU is lost for this process; last operation: await"));
      CHECK(e.hint_text().find("nvidia-smi and the Xid lines of dmesg") != std::string::npos);
      CHECK(e.hint_text().find("--device cuda:N") != std::string::npos);
    }
  }

  TEST_CASE("whatever else goes wrong names the operation before it") {
    const Error e = cuda::error_of(cudaErrorIllegalAddress, "work on the GPU failed", "attention");
    CHECK(e.kind() == ErrorKind::device);
    CHECK(exit_status(e.kind()) == 6);
    CHECK(std::string(e.what()) ==
          "cuda: work on the GPU failed: an illegal memory access was encountered "
          "(cudaErrorIllegalAddress); last operation: attention");
    CHECK(e.hint_text().find("TANDEM_CUDA_SYNC=1") != std::string::npos);
  }
}
