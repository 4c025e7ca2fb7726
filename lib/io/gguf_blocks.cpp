// Decoders of GGUF's blocks. Offsets and formulas: ggml, ggml-common.h and ggml-quants.c.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/convert.h"
#include "base/two_level.h"
#include "io/gguf.h"

namespace tandem::io {
namespace {

constexpr int kSuper = kTwoLevelInputs;  // numbers of a block of the K encodings

const uint8_t* bytes_at(const std::byte* block, int offset) {
  return reinterpret_cast<const uint8_t*>(block) + offset;
}

f16 half_at(const std::byte* block, int offset) {
  f16 value;
  std::memcpy(&value, block + offset, sizeof(value));
  return value;
}

f16 minus_half_at(const std::byte* block, int offset) {
  constexpr uint16_t kSign = 0x8000;
  f16 value = half_at(block, offset);
  value.bits ^= kSign;
  return value;
}

uint32_t word_at(const std::byte* block, int offset) {
  uint32_t word = 0;
  std::memcpy(&word, block + offset, sizeof(word));
  return word;
}

/// Numbers of a block: scale * code + minimum. Each group of a K encoding multiplies them by its
/// integers first.
struct Codes {
  std::array<int8_t, kSuper> code;
  f16 scale, minimum;
  std::array<int8_t, kSuper / 16> scales, minima;
};

/// Code j of a block of 32: nibbles, low ones first, and a fifth bit.
int small_code(const uint8_t* nibbles, uint32_t fifth, int j) {
  const int nibble = j < 16 ? nibbles[j] & 15 : nibbles[j - 16] >> 4;
  return nibble | static_cast<int>(fifth >> j & 1) << 4;
}

void put_code(Codes& out, int i, int code) {
  out.code[static_cast<size_t>(i)] = static_cast<int8_t>(code);
}

void put_scales(Codes& out, int g, int scale, int minimum = 0) {
  out.scales[static_cast<size_t>(g)] = static_cast<int8_t>(scale);
  out.minima[static_cast<size_t>(g)] = static_cast<int8_t>(minimum);
}

void unpack_small(const uint8_t* nibbles, uint32_t fifth, int zero, Codes& out) {
  for (int j = 0; j < 32; ++j) put_code(out, j, small_code(nibbles, fifth, j) - zero);
}

void unpack_q4_0(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 0);
  unpack_small(bytes_at(b, 2), 0, 8, out);
}

void unpack_q4_1(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 0);
  out.minimum = half_at(b, 2);
  unpack_small(bytes_at(b, 4), 0, 0, out);
}

void unpack_q5_0(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 0);
  unpack_small(bytes_at(b, 6), word_at(b, 2), 16, out);
}

void unpack_q5_1(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 0);
  out.minimum = half_at(b, 2);
  unpack_small(bytes_at(b, 8), word_at(b, 4), 0, out);
}

void unpack_q8_0(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 0);
  std::memcpy(out.code.data(), b + 2, 32);
}

/// Calls f(t, byte, code) for each 32 codes of a block, which begin at `code`. Their two low or
/// high bits are bits 2 (t % 4) and up of 32 bytes from `byte` on.
template <class F>
void each_quarter(const F& f) {
  for (int t = 0; t < kSuper / 32; ++t) f(t, 32 * (t / 4), 32 * t);
}

void unpack_q2_k(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 80);
  out.minimum = minus_half_at(b, 82);
  for (int g = 0; g < kSuper / 16; ++g) {
    const int scales = bytes_at(b, 0)[g];
    put_scales(out, g, scales & 15, scales >> 4);
  }
  each_quarter([&](int t, int byte, int code) {
    for (int r = 0; r < 32; ++r)
      put_code(out, code + r, bytes_at(b, 16)[byte + r] >> 2 * (t % 4) & 3);
  });
}

void unpack_q3_k(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 108);
  const uint8_t *high = bytes_at(b, 0), *sc = bytes_at(b, 96);
  for (int g = 0; g < kSuper / 16; ++g) {
    const int scale =
        (sc[g % 8] >> 4 * (g / 8) & 15) + 16 * (sc[8 + g % 4] >> 2 * (g / 4) & 3) - 32;
    put_scales(out, g, scale);
  }
  each_quarter([&](int t, int byte, int code) {
    for (int r = 0; r < 32; ++r) {
      const int low = bytes_at(b, 32)[byte + r] >> 2 * (t % 4) & 3;
      put_code(out, code + r, low + 4 * (high[r] >> t & 1) - 4);
    }
  });
}

/// Scale and minimum of group g, six bits each.
std::pair<int, int> six_bits(const uint8_t* sc, int g) {
  if (g < 4) return {sc[g] & 63, sc[g + 4] & 63};
  return {(sc[g + 4] & 15) + 16 * (sc[g - 4] >> 6), (sc[g + 4] >> 4) + 16 * (sc[g] >> 6)};
}

/// fifth    bits of the codes, 32 bytes; null: none
void unpack_q45_k(const std::byte* b, const uint8_t* fifth, const uint8_t* nibbles, Codes& out) {
  out.scale = half_at(b, 0);
  out.minimum = minus_half_at(b, 2);
  for (int g = 0; g < 8; ++g) {
    const auto [s, m] = six_bits(bytes_at(b, 4), g);
    put_scales(out, g, s, m);
    for (int j = 0; j < 32; ++j) {
      const int byte = nibbles[32 * (g / 2) + j];
      const int code =
          (g % 2 == 0 ? byte & 15 : byte >> 4) + (fifth != nullptr ? 16 * (fifth[j] >> g & 1) : 0);
      put_code(out, 32 * g + j, code);
    }
  }
}

void unpack_q4_k(const std::byte* b, Codes& out) { unpack_q45_k(b, nullptr, bytes_at(b, 16), out); }

void unpack_q5_k(const std::byte* b, Codes& out) {
  unpack_q45_k(b, bytes_at(b, 16), bytes_at(b, 48), out);
}

void unpack_q6_k(const std::byte* b, Codes& out) {
  out.scale = half_at(b, 208);
  std::memcpy(out.scales.data(), bytes_at(b, 192), out.scales.size());
  each_quarter([&](int t, int byte, int code) {
    const uint8_t* const low = bytes_at(b, 0) + 2 * byte + 32 * (t % 2);
    const int shift = t % 4 < 2 ? 0 : 4;
    for (int r = 0; r < 32; ++r) {
      const int high = bytes_at(b, 128)[byte + r] >> 2 * (t % 4) & 3;
      put_code(out, code + r, (low[r] >> shift & 15) + 16 * high - 32);
    }
  });
}

template <class T>
void read_number(const std::byte* b, float* out) {
  T value;
  std::memcpy(&value, b, sizeof(value));
  *out = to_float(value);
}

struct Encoding {
  GgufType type;
  std::string_view name;
  int block, bytes;
  WeightFormat format;  // the numbers, or codes that hold a block
  void (*unpack)(const std::byte* block, Codes& out) = nullptr;  // null for numbers
  void (*number)(const std::byte* at, float* out) = nullptr;     // null for codes
};

Encoding numbers(GgufType type, std::string_view name, DType format,
                 void (*number)(const std::byte*, float*)) {
  return {type, name, 1, static_cast<int>(dtype_bytes(format)), format, nullptr, number};
}

Encoding blocks_of(GgufType type, std::string_view name, int block, int bytes, WeightFormat format,
                   void (*unpack)(const std::byte*, Codes&)) {
  return {type, name, block, bytes, format, unpack, nullptr};
}

WeightFormat groups_of(Code code, int16_t group, Zero zero) {
  return {code, group, ScaleType::f16, zero};
}

WeightFormat two_level(Code code, int16_t group, Zero zero) {
  return {code, group, ScaleType::two_level, zero};
}

const std::array<Encoding, 13>& encodings() {
  constexpr Zero kNone = Zero::none, kMinimum = Zero::minimum;
  constexpr Code kFour = Code::i4, kEight = Code::i8;
  using T = GgufType;
  static const std::array<Encoding, 13> all = {
      numbers(T::f32, "F32", DType::f32, read_number<float>),
      numbers(T::f16, "F16", DType::f16, read_number<f16>),
      blocks_of(T::q4_0, "Q4_0", 32, 18, groups_of(kFour, 32, kNone), unpack_q4_0),
      blocks_of(T::q4_1, "Q4_1", 32, 20, groups_of(kFour, 32, kMinimum), unpack_q4_1),
      blocks_of(T::q5_0, "Q5_0", 32, 22, groups_of(Code::i5, 32, kNone), unpack_q5_0),
      blocks_of(T::q5_1, "Q5_1", 32, 24, groups_of(Code::i5, 32, kMinimum), unpack_q5_1),
      blocks_of(T::q8_0, "Q8_0", 32, 34, groups_of(kEight, 32, kNone), unpack_q8_0),
      blocks_of(T::q2_k, "Q2_K", kSuper, 84, two_level(kFour, 16, kMinimum), unpack_q2_k),
      blocks_of(T::q3_k, "Q3_K", kSuper, 110, two_level(kFour, 16, kNone), unpack_q3_k),
      blocks_of(T::q4_k, "Q4_K", kSuper, 144, two_level(kFour, 32, kMinimum), unpack_q4_k),
      blocks_of(T::q5_k, "Q5_K", kSuper, 176, two_level(Code::i5, 32, kMinimum), unpack_q5_k),
      blocks_of(T::q6_k, "Q6_K", kSuper, 210, two_level(Code::i6, 16, kNone), unpack_q6_k),
      numbers(T::bf16, "BF16", DType::bf16, read_number<bf16>)};
  return all;
}

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
  const auto* const at = std::ranges::find(encodings(), type, &Encoding::type);
  TANDEM_CHECK(at != encodings().end(), "GGUF type {} is not read", static_cast<uint32_t>(type));
  return *at;
}

bool is_two_level(const Encoding& t) { return t.format.scale == ScaleType::two_level; }

/// Multiplies and adds in the order of ggml's reference.
void decode_codes(const Encoding& t, const Codes& codes, float* out) {
  const bool has_minimum = t.format.zero == Zero::minimum;
  const int group = t.format.group;
  const auto* code = codes.code.data();
  for (size_t g = 0; g < static_cast<size_t>(t.block / group); ++g, code += group, out += group) {
    float scale = to_float(codes.scale), minimum = to_float(codes.minimum);
    if (is_two_level(t)) {
      scale *= static_cast<float>(codes.scales[g]);
      minimum *= static_cast<float>(codes.minima[g]);
    }
    if (has_minimum)
      for (int i = 0; i < group; ++i) out[i] = scale * static_cast<float>(code[i]) + minimum;
    else
      for (int i = 0; i < group; ++i) out[i] = scale * static_cast<float>(code[i]);
  }
}

/// The place that codes are written to; `finite` while all scales and minima are.
struct CodeWriter {
  std::byte* out;
  bool finite = true;

  void put_half(f16 half) {
    constexpr uint16_t kExponent = 0x7c00;
    finite = finite && (half.bits & kExponent) != kExponent;
    put(&half, sizeof(half));
  }
  void put(const void* bytes, size_t n) {
    std::memcpy(out, bytes, n);
    out += n;
  }
};

/// Writes a block as base/weight_format.h has it.
void write_codes(const Encoding& t, const Codes& codes, CodeWriter& to) {
  const TwoLevelBlock block{t.format.code, t.format.zero, t.format.group};
  const CodeBits bits{block.code, t.block};
  const bool has_minimum = block.zero == Zero::minimum;
  if (bits.whole()) {
    to.put(codes.code.data(), static_cast<size_t>(t.block));
  } else {
    std::memset(to.out, 0, static_cast<size_t>(bits.bytes()));
    for (int i = 0; i < t.block; ++i)
      bits.put_code(reinterpret_cast<uint8_t*>(to.out), i,
                    codes.code[static_cast<size_t>(i)] + bits.offset(block.zero));
    to.out += bits.bytes();
  }
  if (is_two_level(t)) {
    to.put(codes.scales.data(), static_cast<size_t>(block.groups()));
    if (has_minimum) to.put(codes.minima.data(), static_cast<size_t>(block.groups()));
  }
  to.put_half(codes.scale);
  if (has_minimum) to.put_half(codes.minimum);
}

}  // namespace

std::string gguf_type_name(uint32_t type) {
  if (is_gguf_type(type)) return std::string(encoding(static_cast<GgufType>(type)).name);
  for (const auto& [number, name] : kOthers)
    if (static_cast<uint32_t>(number) == type) return name;
  return fmt::format("type {}", type);
}

bool is_gguf_type(uint32_t type) {
  return std::ranges::find(encodings(), static_cast<GgufType>(type), &Encoding::type) !=
         encodings().end();
}

int64_t gguf_block(GgufType type) { return encoding(type).block; }

size_t gguf_bytes(GgufType type, int64_t n) {
  const Encoding& t = encoding(type);
  return static_cast<size_t>(n / t.block) * static_cast<size_t>(t.bytes);
}

WeightFormat gguf_format(GgufType type) { return encoding(type).format; }

void decode_gguf(GgufType type, const std::byte* blocks, int64_t n, float* out) {
  const Encoding& t = encoding(type);
  Codes codes{};
  for (int64_t i = 0; i < n; i += t.block, blocks += t.bytes) {
    if (t.number != nullptr) {
      t.number(blocks, out + i);
      continue;
    }
    t.unpack(blocks, codes);
    decode_codes(t, codes, out + i);
  }
}

bool gguf_codes(GgufType type, const std::byte* blocks, int64_t n, std::byte* out) {
  const Encoding& t = encoding(type);
  TANDEM_CHECK(t.unpack != nullptr, "{} has no codes", t.name);
  Codes codes{};
  CodeWriter to{out};
  for (int64_t i = 0; i < n; i += t.block, blocks += t.bytes) {
    t.unpack(blocks, codes);
    write_codes(t, codes, to);
  }
  return to.finite;
}

}  // namespace tandem::io
