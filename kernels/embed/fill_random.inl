#include "kernels/embed/fill_random.h"

#include <string.h>

#include "kernels/embed/number_bytes.h"

namespace tandem {
namespace {

constexpr int kLanes = 16;                            // Philox blocks of one group
constexpr uint32_t kPurposeWeights = 4;               // DrawPurpose::weights of base/rng.h
constexpr double kUnitStep = 2.6428997921303018e-05;  // sqrt(3 / (2^32 - 1)): stddev 1 over odd
                                                      // numbers -65535 .. 65535

struct Words {
  uint32_t w[4][kLanes];
};

/// Philox4x32-10 of base/rng.h for the 16 counters {16 group + lane, purpose, tensor}.
inline void draw_group(Words& c, const FillRandomParams& p, uint64_t group) {
  const uint64_t block = group * kLanes;
  for (int l = 0; l < kLanes; ++l) {
    c.w[0][l] = static_cast<uint32_t>(block) + static_cast<uint32_t>(l);
    c.w[1][l] = static_cast<uint32_t>(block >> 32);
    c.w[2][l] = kPurposeWeights;
    c.w[3][l] = p.tensor;
  }
  uint32_t key0 = static_cast<uint32_t>(p.seed), key1 = static_cast<uint32_t>(p.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t a = uint64_t{0xD2511F53u} * c.w[0][l], b = uint64_t{0xCD9E8D57u} * c.w[2][l];
      c.w[0][l] = static_cast<uint32_t>(b >> 32) ^ c.w[1][l] ^ key0;
      c.w[1][l] = static_cast<uint32_t>(b);
      c.w[2][l] = static_cast<uint32_t>(a >> 32) ^ c.w[3][l] ^ key1;
      c.w[3][l] = static_cast<uint32_t>(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

template <class T>
inline void write_group(T* __restrict out, const Words& c, float step) {
  for (int word = 0; word < 4; ++word) {
    for (int l = 0; l < kLanes; ++l) {
      const int low = static_cast<int>(c.w[word][l] & 0xffffu);
      narrow(out + 2 * word * kLanes + l, static_cast<float>(2 * low - 65535) * step);
    }
    for (int l = 0; l < kLanes; ++l) {
      const int high = static_cast<int>(c.w[word][l] >> 16);
      narrow(out + (2 * word + 1) * kLanes + l, static_cast<float>(2 * high - 65535) * step);
    }
  }
}

template <class T>
void fill(const FillRandomParams& p, int64_t begin, int64_t end) {
  const float step = static_cast<float>(static_cast<double>(p.stddev) * kUnitStep);
  T* out = static_cast<T*>(p.out);
  T part[kFillGroup];
  Words words;
  for (int64_t j = begin; j < end;) {
    const int64_t skipped = (p.first + j) % kFillGroup;  // of the group, at its front
    draw_group(words, p, static_cast<uint64_t>((p.first + j) / kFillGroup));
    const int64_t left = end - j, n = left < kFillGroup - skipped ? left : kFillGroup - skipped;
    if (n == kFillGroup) {
      write_group(out + j, words, step);
    } else {
      write_group(part, words, step);
      memcpy(out + j, part + skipped, static_cast<size_t>(n) * sizeof(T));
    }
    j += n;
  }
}

}  // namespace

void TANDEM_ISA_FN(fill_random)(const FillRandomParams& p, Range blocks) {
  const int64_t begin = static_cast<int64_t>(blocks.begin) * kFillBlock;
  const int64_t limit = static_cast<int64_t>(blocks.end) * kFillBlock;
  const int64_t end = limit < p.count ? limit : p.count;
  if (p.to == DType::bf16)
    fill<bf16>(p, begin, end);
  else
    fill<float>(p, begin, end);
}

}  // namespace tandem
