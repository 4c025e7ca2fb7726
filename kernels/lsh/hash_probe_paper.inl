#include <stddef.h>

#include "kernels/lsh/hash_probe_paper.h"

namespace tandem {

int TANDEM_ISA_FN(hash_probe_paper)(const HashProbePaperParams& p) {
  const PaperTables& block = p.block;
  __builtin_memset(p.marks, 0, static_cast<size_t>(block.n_tokens));
  int n = 0;
  for (int t = 0; t < p.tables; ++t) {
    const int64_t bucket = (static_cast<int64_t>(t) << block.code_bits) + p.codes[t];
    const int32_t* ids = block.ids + static_cast<int64_t>(t) * block.n_tokens;
    const int32_t end = block.end[bucket];
    for (int32_t i = block.start[bucket]; i < end; ++i) {
      const int32_t id = ids[i];
      if (p.marks[id] == 0) {
        p.marks[id] = 1;
      } else if (p.marks[id] == 1) {
        p.marks[id] = 2;
        p.ids[n++] = id;
      }
    }
  }
  return n;
}

}  // namespace tandem
