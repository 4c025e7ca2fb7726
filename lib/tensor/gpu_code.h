#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace tandem::cuda {

/// The device code of a program.
struct GpuCode {
  std::vector<std::string> machine;  // GPUs that it holds machine code for: "90a", "86"
  std::string ptx;                   // that of the PTX: "80"; empty without PTX
  int toolkit = 0;                   // CUDA's version that built it, 13000 for 13.0
};

/// A GPU and its driver.
struct GpuFacts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int driver = 0;            // the newest version of CUDA that the driver knows, 13000 for 13.0
};

/// "13.0" of 13000.
std::string cuda_version_text(int version);

/// The code in words: "CUDA 13.0: machine code for sm_90a, PTX for compute_80".
std::string code_text(const GpuCode& code);

/// Why such a GPU and driver cannot run the code, with a remedy; nothing where they can.
std::optional<Error> why_unfit(const GpuCode& code, const GpuFacts& gpu);

/// Why a driver cannot run programs of this toolkit at all, and what to do; empty where it can.
/// driver   0: there is none
std::string why_driver_unfit(int toolkit, int driver);

}  // namespace tandem::cuda
