// Decoders of GGUF's blocks. Offsets and formulas: ggml, ggml-common.h and ggml-quants.c.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/convert.h"
#include "io/gguf.h"

namespace tandem::io {
namespace {

constexpr int kSuper = 256;  // numbers of a block of the K encodings

const uint8_t* bytes_at(const std::byte* block, int offset) {
  return reinterpret_cast<const uint8_t*>(block) + offset;
}

float half_at(const std::byte* block, int offset) {
  f16 value;
  std::memcpy(&value, block + offset, sizeof(value));
  return to_float(value);
}

uint32_t word_at(const std::byte* block, int offset) {
  uint32_t word = 0;
  std::memcpy(&word, block + offset, sizeof(word));
  return word;
}

/// Code j of a block of 32: nibbles, low ones first, and a fifth bit.
int small_code(const uint8_t* nibbles, uint32_t fifth, int j) {
  const int nibble = j < 16 ? nibbles[j] & 15 : nibbles[j - 16] >> 4;
  return nibble | static_cast<int>(fifth >> j & 1) << 4;
}

void decode_q4_0(const std::byte* b, float* out) {
  const float d = half_at(b, 0);
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>(small_code(bytes_at(b, 2), 0, j) - 8);
}

void decode_q4_1(const std::byte* b, float* out) {
  const float d = half_at(b, 0), m = half_at(b, 2);
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>(small_code(bytes_at(b, 4), 0, j)) + m;
}

void decode_q5_0(const std::byte* b, float* out) {
  const float d = half_at(b, 0);
  const uint32_t fifth = word_at(b, 2);
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>(small_code(bytes_at(b, 6), fifth, j) - 16);
}

void decode_q5_1(const std::byte* b, float* out) {
  const float d = half_at(b, 0), m = half_at(b, 2);
  const uint32_t fifth = word_at(b, 4);
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>(small_code(bytes_at(b, 8), fifth, j)) + m;
}

void decode_q8_0(const std::byte* b, float* out) {
  const float d = half_at(b, 0);
  for (int j = 0; j < 32; ++j)
    out[j] = d * static_cast<float>(static_cast<int8_t>(bytes_at(b, 2)[j]));
}

/// Code i of two bits.
int two_bits(const uint8_t* q, int i) {
  return q[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

void decode_q2_k(const std::byte* b, float* out) {
  const float d = half_at(b, 80), dmin = half_at(b, 82);
  for (int i = 0; i < kSuper; ++i) {
    const int scales = bytes_at(b, 0)[i / 16];
    const float scale = d * static_cast<float>(scales & 15),
                least = dmin * static_cast<float>(scales >> 4);
    out[i] = scale * static_cast<float>(two_bits(bytes_at(b, 16), i)) - least;
  }
}

void decode_q3_k(const std::byte* b, float* out) {
  const float d = half_at(b, 108);
  const uint8_t *high = bytes_at(b, 0), *sc = bytes_at(b, 96);
  for (int i = 0; i < kSuper; ++i) {
    const int g = i / 16;
    const int scale =
        (sc[g % 8] >> 4 * (g / 8) & 15) + 16 * (sc[8 + g % 4] >> 2 * (g / 4) & 3) - 32;
    const int code = two_bits(bytes_at(b, 32), i) - ((high[i % 32] >> i / 32 & 1) != 0 ? 0 : 4);
    out[i] = d * static_cast<float>(scale) * static_cast<float>(code);
  }
}

/// Scale and minimum of group g, six bits each.
std::pair<int, int> six_bits(const uint8_t* sc, int g) {
  if (g < 4) return {sc[g] & 63, sc[g + 4] & 63};
  return {(sc[g + 4] & 15) + 16 * (sc[g - 4] >> 6), (sc[g + 4] >> 4) + 16 * (sc[g] >> 6)};
}

/// fifth    bits of the codes, 32 bytes; null: none
void decode_q45_k(const std::byte* b, const uint8_t* fifth, const uint8_t* nibbles, float* out) {
  const float d = half_at(b, 0), dmin = half_at(b, 2);
  for (int g = 0; g < 8; ++g) {
    const auto [s, m] = six_bits(bytes_at(b, 4), g);
    const float scale = d * static_cast<float>(s), least = dmin * static_cast<float>(m);
    for (int j = 0; j < 32; ++j) {
      const int byte = nibbles[32 * (g / 2) + j];
      const int code =
          (g % 2 == 0 ? byte & 15 : byte >> 4) + (fifth != nullptr ? 16 * (fifth[j] >> g & 1) : 0);
      out[32 * g + j] = scale * static_cast<float>(code) - least;
    }
  }
}

void decode_q4_k(const std::byte* b, float* out) { decode_q45_k(b, nullptr, bytes_at(b, 16), out); }

void decode_q5_k(const std::byte* b, float* out) {
  decode_q45_k(b, bytes_at(b, 16), bytes_at(b, 48), out);
}

void decode_q6_k(const std::byte* b, float* out) {
  const float d = half_at(b, 208);
  for (int i = 0; i < kSuper; ++i) {
    const int n = i / 128, r = i % 128, t = r / 32;
    const int low = bytes_at(b, 0)[64 * n + 32 * (t % 2) + r % 32];
    const int code =
        (t < 2 ? low & 15 : low >> 4) + 16 * (bytes_at(b, 128)[32 * n + r % 32] >> 2 * t & 3) - 32;
    const auto scale = static_cast<int8_t>(bytes_at(b, 192)[i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>(code);
  }
}

template <class T>
void decode_number(const std::byte* b, float* out) {
  T value;
  std::memcpy(&value, b, sizeof(value));
  *out = to_float(value);
}

struct Encoding {
  GgufType type;
  std::string_view name;
  int block, bytes;
  void (*decode)(const std::byte* block, float* out);
};

constexpr std::array kEncodings = {Encoding{GgufType::f32, "F32", 1, 4, decode_number<float>},
                                   Encoding{GgufType::f16, "F16", 1, 2, decode_number<f16>},
                                   Encoding{GgufType::q4_0, "Q4_0", 32, 18, decode_q4_0},
                                   Encoding{GgufType::q4_1, "Q4_1", 32, 20, decode_q4_1},
                                   Encoding{GgufType::q5_0, "Q5_0", 32, 22, decode_q5_0},
                                   Encoding{GgufType::q5_1, "Q5_1", 32, 24, decode_q5_1},
                                   Encoding{GgufType::q8_0, "Q8_0", 32, 34, decode_q8_0},
                                   Encoding{GgufType::q2_k, "Q2_K", kSuper, 84, decode_q2_k},
                                   Encoding{GgufType::q3_k, "Q3_K", kSuper, 110, decode_q3_k},
                                   Encoding{GgufType::q4_k, "Q4_K", kSuper, 144, decode_q4_k},
                                   Encoding{GgufType::q5_k, "Q5_K", kSuper, 176, decode_q5_k},
                                   Encoding{GgufType::q6_k, "Q6_K", kSuper, 210, decode_q6_k},
                                   Encoding{GgufType::bf16, "BF16", 1, 2, decode_number<bf16>}};

/// Encodings that are not read.
constexpr std::array kOthers = {
    std::pair{9, "Q8_1"},    std::pair{15, "Q8_K"},    std::pair{16, "IQ2_XXS"},
    std::pair{17, "IQ2_XS"}, std::pair{18, "IQ3_XXS"}, std::pair{19, "IQ1_S"},
    std::pair{20, "IQ4_NL"}, std::pair{21, "IQ3_S"},   std::pair{22, "IQ2_S"},
    std::pair{23, "IQ4_XS"}, std::pair{24, "I8"},      std::pair{25, "I16"},
    std::pair{26, "I32"},    std::pair{27, "I64"},     std::pair{28, "F64"},
    std::pair{29, "IQ1_M"},  std::pair{34, "TQ1_0"},   std::pair{35, "TQ2_0"},
    std::pair{39, "MXFP4"},  std::pair{40, "NVFP4"}};

const Encoding& encoding(GgufType type) {
  const auto* const at = std::ranges::find(kEncodings, type, &Encoding::type);
  TANDEM_CHECK(at != kEncodings.end(), "GGUF type {} is not read", static_cast<uint32_t>(type));
  return *at;
}

}  // namespace

std::string gguf_type_name(uint32_t type) {
  if (is_gguf_type(type)) return std::string(encoding(static_cast<GgufType>(type)).name);
  for (const auto& [number, name] : kOthers)
    if (static_cast<uint32_t>(number) == type) return name;
  return fmt::format("type {}", type);
}

bool is_gguf_type(uint32_t type) {
  return std::ranges::find(kEncodings, static_cast<GgufType>(type), &Encoding::type) !=
         kEncodings.end();
}

int64_t gguf_block(GgufType type) { return encoding(type).block; }

size_t gguf_bytes(GgufType type, int64_t n) {
  const Encoding& t = encoding(type);
  return static_cast<size_t>(n / t.block) * static_cast<size_t>(t.bytes);
}

void decode_gguf(GgufType type, const std::byte* blocks, int64_t n, float* out) {
  const Encoding& t = encoding(type);
  for (int64_t i = 0; i < n; i += t.block, blocks += t.bytes) t.decode(blocks, out + i);
}

}  // namespace tandem::io
