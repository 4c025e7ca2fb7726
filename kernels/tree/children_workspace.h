#pragma once
// Layout of the workspace of draw_children. Unnamed: included by sources with per-ISA flags.
#include "kernels/sample/workspace.h"

namespace tandem {
namespace {

struct Contender {
  double key;  // the smallest win
  int32_t id;
};

struct ChildrenWorkspace {
  Workspace select;       // of sample
  Contender* contenders;  // [V]
  size_t bytes;
};

inline ChildrenWorkspace lay_out_children(void* base, int vocab) {
  const Workspace select = lay_out(base, vocab);
  return {select, reinterpret_cast<Contender*>(static_cast<char*>(base) + select.bytes),
          select.bytes + static_cast<size_t>(vocab) * sizeof(Contender)};
}

}  // namespace
}  // namespace tandem
