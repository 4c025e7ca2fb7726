#include "kernels/embed/embed.h"

#include "kernels/embed/number_bytes.h"

namespace tandem {
namespace {

template <class From>
void embed_rows(const EmbedParams& p, Range rows) {
  const int64_t dim = p.dim, row_bytes = dim * static_cast<int64_t>(sizeof(From));
  for (int r = rows.begin; r < rows.end; ++r)
    convert_elements<float, From>(p.out + r * dim,
                                  static_cast<const char*>(p.table) + p.ids[r] * row_bytes, 0, dim);
}

}  // namespace

void TANDEM_ISA_FN(embed)(const EmbedParams& p, Range rows) {
  switch (p.from) {
    case DType::f16:
      return embed_rows<f16>(p, rows);
    case DType::bf16:
      return embed_rows<bf16>(p, rows);
    default:
      return embed_rows<float>(p, rows);
  }
}

}  // namespace tandem
