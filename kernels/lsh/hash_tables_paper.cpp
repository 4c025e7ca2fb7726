#include <cstddef>
#include <vector>

#include "kernels/lsh/hash_probe_paper.h"

namespace tandem {

void hash_build_paper(const PaperTables& block, const uint16_t* codes, int64_t code_stride,
                      Range tables) {
  const int64_t buckets = int64_t{1} << block.code_bits;
  for (int64_t t = tables.begin; t < tables.end; ++t) {
    const uint16_t* code = codes + t * code_stride;
    int32_t* start = block.start + t * buckets;
    int32_t* end = block.end + t * buckets;
    int32_t* ids = block.ids + t * block.n_tokens;
    std::vector<int32_t> next(static_cast<std::size_t>(buckets), 0);
    for (int i = 0; i < block.n_tokens; ++i) ++next[code[i]];
    int32_t sum = 0;
    for (int64_t c = 0; c < buckets; ++c) {
      const int32_t count = next[static_cast<std::size_t>(c)];
      start[c] = count > 0 ? sum : 0;
      end[c] = count > 0 ? sum + count : 0;
      next[static_cast<std::size_t>(c)] = sum;
      sum += count;
    }
    for (int i = 0; i < block.n_tokens; ++i) ids[next[code[i]]++] = i;
  }
}

}  // namespace tandem
