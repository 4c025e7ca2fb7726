#include "kernels/embed/convert.h"

#include "kernels/embed/number_bytes.h"

namespace tandem {
namespace {

template <class To>
void convert_to(const ConvertParams& p, int64_t begin, int64_t end) {
  switch (p.from) {
    case DType::f16:
      return convert_elements<To, f16>(p.out, p.in, begin, end);
    case DType::bf16:
      return convert_elements<To, bf16>(p.out, p.in, begin, end);
    default:
      return convert_elements<To, float>(p.out, p.in, begin, end);
  }
}

}  // namespace

void TANDEM_ISA_FN(convert)(const ConvertParams& p, Range blocks) {
  const int64_t begin = static_cast<int64_t>(blocks.begin) * kConvertBlock;
  const int64_t limit = static_cast<int64_t>(blocks.end) * kConvertBlock;
  const int64_t end = limit < p.n ? limit : p.n;
  if (p.to == DType::bf16)
    convert_to<bf16>(p, begin, end);
  else
    convert_to<float>(p, begin, end);
}

}  // namespace tandem
