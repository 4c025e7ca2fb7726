#include "kernels/signature/signature.h"

namespace tandem {

void signature_pack(const SignaturePackParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const uint64_t* bits = p.bits + r * p.bit_words;
    const int64_t key = p.first + r, group = key / kSignatureGroup;
    uint32_t* words =
        p.signatures + group * p.words * kSignatureGroup + (key - group * kSignatureGroup);
    for (int w = 0; w < p.words; ++w)
      words[w * kSignatureGroup] = static_cast<uint32_t>(bits[w / 2] >> (32 * (w % 2)));
  }
}

}  // namespace tandem
