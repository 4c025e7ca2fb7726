#include "kernels/signature/signature.h"

namespace tandem {

SimilarityCurve similarity_curve(int bits) {
  // Minimax fit of sin(pi t / 2), |t| <= 1, by t (c1 + c3 t^2 + c5 t^4); t = 2 x / bits.
  constexpr double kC1 = 1.570320019159875, kC3 = -0.6421131670105218, kC5 = 0.07186085425154948;
  const double half = bits / 2.0, square = half * half;
  return {.scale = static_cast<float>(kC5 / (square * square * half)),
          .p = static_cast<float>(kC3 / kC5 * square),
          .q = static_cast<float>(kC1 / kC5 * square * square)};
}

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
