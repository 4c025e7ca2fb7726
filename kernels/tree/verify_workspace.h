#pragma once
// Layout of the workspace of verify_trees. Unnamed: included by sources with per-ISA flags.
#include "kernels/sample/workspace.h"
#include "kernels/tree/node_step.h"

namespace tandem {
namespace {

struct VerifyWorkspace {
  Workspace select;  // of sample
  double* proposal;  // [V]
  uint64_t* next;    // [V]
  Reach* reach;      // [nodes]
  float* lse;        // [nodes] of the target's rows as they are, natural log; NaN: not known
  int32_t* depth;    // [nodes]
  size_t bytes;
};

inline VerifyWorkspace lay_out_verify(void* base, int vocab, int nodes) {
  const Workspace select = lay_out(base, vocab);
  const auto v = static_cast<size_t>(vocab);
  char* p = static_cast<char*>(base) + select.bytes;
  char* const next = p + v * sizeof(double);
  char* const reach = next + v * sizeof(uint64_t);
  const auto n = static_cast<size_t>(nodes);
  char* const lse = reach + n * sizeof(Reach);
  char* const depth = lse + n * sizeof(float);
  return {select,
          reinterpret_cast<double*>(p),
          reinterpret_cast<uint64_t*>(next),
          reinterpret_cast<Reach*>(reach),
          reinterpret_cast<float*>(lse),
          reinterpret_cast<int32_t*>(depth),
          select.bytes + v * (sizeof(double) + sizeof(uint64_t)) +
              n * (sizeof(Reach) + sizeof(float) + sizeof(int32_t))};
}

}  // namespace
}  // namespace tandem
