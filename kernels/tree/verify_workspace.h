#pragma once
// Layout of the workspace of verify_trees. Unnamed: included by sources with per-ISA flags.
#include "kernels/sample/workspace.h"

namespace tandem {
namespace {

struct VerifyWorkspace {
  Workspace select;  // of sample
  double* proposal;  // [V]
  uint64_t* next;    // [V]
  size_t bytes;
};

inline VerifyWorkspace lay_out_verify(void* base, int vocab) {
  const Workspace select = lay_out(base, vocab);
  const auto v = static_cast<size_t>(vocab);
  char* p = static_cast<char*>(base) + select.bytes;
  return {select, reinterpret_cast<double*>(p), reinterpret_cast<uint64_t*>(p + v * sizeof(double)),
          select.bytes + v * (sizeof(double) + sizeof(uint64_t))};
}

}  // namespace
}  // namespace tandem
