#include <cstring>

#include "base/convert.h"
#include "kernels/embed/convert.h"
#include "kernels/embed/embed.h"

namespace tandem {
namespace {

template <class T>
float read_number(const void* in, int64_t i) {
  T x;
  std::memcpy(&x, static_cast<const char*>(in) + i * static_cast<int64_t>(sizeof x), sizeof x);
  return to_float(x);
}

float read_number(const void* in, DType type, int64_t i) {
  if (type == DType::f16) return read_number<f16>(in, i);
  if (type == DType::bf16) return read_number<bf16>(in, i);
  return read_number<float>(in, i);
}

}  // namespace

void convert_ref(const ConvertParams& p, Range blocks) {
  for (int64_t i = int64_t{blocks.begin} * kConvertBlock;
       i < p.n && i < int64_t{blocks.end} * kConvertBlock; ++i) {
    const float x = read_number(p.in, p.from, i);
    if (p.to == DType::bf16)
      static_cast<bf16*>(p.out)[i] = to_bf16(x);
    else
      static_cast<float*>(p.out)[i] = x;
  }
}

void embed_ref(const EmbedParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t i = 0; i < p.dim; ++i)
      p.out[r * p.dim + i] = read_number(p.table, p.from, int64_t{p.ids[r]} * p.dim + i);
}

}  // namespace tandem
