#include <algorithm>

#include "kernels/adapter/grouped_products.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

/// Calls visit for each row of a group.
template <class F>
void for_rows(const RowGroups& groups, int group, F&& visit) {
  for (int i = 0; i < kGroupRows; ++i)
    if (const int32_t r = groups.rows[group * kGroupRows + i]; r >= 0) visit(int64_t{r});
}

}  // namespace

void grouped_dots_ref(const GroupedDotsParams& p, Range blocks) {
  const int each = (p.most + kDotParts - 1) / kDotParts;
  for (int at = blocks.begin; at < blocks.end; ++at) {
    const int group = at / each, first = at % each * kDotParts;
    if (group >= *p.groups.n) return;
    const AdapterPart& part = p.parts[p.groups.adapter[group] * p.part_stride];
    for_rows(p.groups, group, [&](int64_t r) {
      for (int64_t j = first; j < std::min(part.n, first + kDotParts); ++j) {
        const int64_t to = r * p.y_stride + part.index[j];
        double sum = p.add ? element(p.y, p.y_type, to) : 0;
        for (int64_t k = 0; k < p.in; ++k)
          sum += element(p.x, p.type, r * p.in + k) * element(part.values, p.type, j * p.in + k);
        put(p.y, p.y_type, to, sum);
      }
    });
  }
}

void grouped_sums_ref(const GroupedSumsParams& p, Range blocks) {
  const int each = sum_blocks(p);
  for (int at = blocks.begin; at < blocks.end; ++at) {
    const int group = at / each;
    if (group >= *p.groups.n) return;
    int block = at % each, t = 0;
    const auto blocks_of = [&](int i) {
      return (p.targets[i].width + kSumColumns - 1) / kSumColumns;
    };
    while (block >= blocks_of(t)) block -= blocks_of(t++);
    const GroupedTarget& target = p.targets[t];
    const AdapterPart& part = p.parts[p.groups.adapter[group] * p.part_stride + target.part];
    const int begin = block * kSumColumns, end = std::min(target.width, begin + kSumColumns);
    for_rows(p.groups, group, [&](int64_t r) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t to = r * p.y_stride + target.first + c;
        double sum = element(p.y, p.y_type, to);
        for (int64_t j = 0; j < part.n; ++j)
          sum += element(p.x, p.type, r * p.x_stride + part.index[j]) *
                 element(part.values, p.type, j * target.width + c);
        put(p.y, p.y_type, to, sum);
      }
    });
  }
}

}  // namespace tandem
