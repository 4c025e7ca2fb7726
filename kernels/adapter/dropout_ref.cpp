#include "base/philox.h"
#include "kernels/adapter/dropout.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

bool keeps(const DropoutParams& p, int64_t row, int64_t column) {
  const int64_t groups = (p.width + kDropoutGroup - 1) / kDropoutGroup;
  const int64_t group = row * groups + column / kDropoutGroup, slot = column % kDropoutGroup / 16;
  const PhiloxBlock block = philox_block({{static_cast<uint32_t>(16 * group + column % 16), p.step,
                                           static_cast<uint32_t>(DrawPurpose::dropout), p.place}},
                                         p.seed);
  return (block.w[slot / 2] >> (slot % 2 * 16) & 0xffffu) >= p.threshold;
}

template <class T>
void drop(const DropoutParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t c = 0; c < p.width; ++c) {
      const int64_t i = r * p.width + c;
      const double kept = keeps(p, r, c) ? element(p.in, p.act, i) * p.scale : 0.0;
      static_cast<T*>(p.out)[i] = from_double<T>(p.add ? element(p.out, p.act, i) + kept : kept);
    }
}

}  // namespace

void dropout_ref(const DropoutParams& p, Range rows) {
  p.act == DType::bf16 ? drop<bf16>(p, rows) : drop<float>(p, rows);
}

}  // namespace tandem
