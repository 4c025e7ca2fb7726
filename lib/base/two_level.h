#pragma once
// Rows of codes, and blocks of weights with scales of two levels. No STL: included by
// sources compiled with per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Codes of some inputs of a row.
/// layout   i8, fp8: a byte each. Others: low bits [inputs / 2], then high bits
///          [inputs / 8 * high_bits()]. Byte i of low bits holds input 2i in its low half and the
///          next one in its high half. The high bit of input i is bit i % 8 of byte i / 8 for i5.
///          For i6, the two high bits are bits 2 (i % 4) and the next of byte i / 4
struct CodeBits {
  Code code;
  int inputs;

  constexpr bool whole() const { return code == Code::i8 || code == Code::fp8; }
  constexpr int high_bits() const { return code == Code::i5 ? 1 : code == Code::i6 ? 2 : 0; }
  constexpr int high_at() const { return whole() ? inputs : (inputs + 1) / 2; }
  constexpr int bytes() const { return high_at() + (inputs + 7) / 8 * high_bits(); }
  /// The number that is subtracted from codes, in the place of an integer zero.
  constexpr int offset(Zero zero) const {
    return whole() || zero != Zero::none ? 0 : 8 << high_bits();
  }

  [[gnu::always_inline]] constexpr int code_at(const uint8_t* codes, int i) const {
    if (whole()) return codes[i];
    const int bits = high_bits(), low = codes[i / 2] >> (i % 2 * 4) & 15;
    if (bits == 0) return low;
    return low | (codes[high_at() + i * bits / 8] >> (i * bits % 8) & (2 * bits - 1)) << 4;
  }
  /// Adds code i of fewer than 8 bits to bytes of zeros.
  [[gnu::always_inline]] constexpr void put_code(uint8_t* codes, int i, int value) const {
    const auto add = [](uint8_t& byte, int bits) { byte = static_cast<uint8_t>(byte | bits); };
    const int bits = high_bits();
    add(codes[i / 2], (value & 15) << (i % 2 * 4));
    if (bits > 0) add(codes[high_at() + i * bits / 8], value >> 4 << (i * bits % 8));
  }
};

/// Inputs of a block, which share the f16 factors of scales and minima.
inline constexpr int kTwoLevelInputs = 256;

/// Layout of a block of one row. A group's scale is its i8 times the block's f16, and so is its
/// minimum.
/// layout   codes, scales [groups] i8, minima [groups] i8, factor of scales f16, factor of minima
///          f16
struct TwoLevelBlock {
  Code code;  // i4, i5 or i6
  Zero zero;  // none or minimum
  int group;  // 16 or 32

  bool operator==(const TwoLevelBlock&) const = default;
  constexpr int groups() const { return kTwoLevelInputs / group; }
  constexpr CodeBits codes() const { return {code, kTwoLevelInputs}; }
  constexpr int offset() const { return codes().offset(zero); }
  constexpr int scales_at() const { return codes().bytes(); }
  constexpr int minima_at() const { return scales_at() + groups(); }
  constexpr int factors_at() const { return minima_at() + (zero == Zero::minimum ? groups() : 0); }
  constexpr int bytes() const { return factors_at() + (zero == Zero::minimum ? 4 : 2); }
};

/// The blocks that products take: those of GGUF's Q2_K, Q3_K, Q4_K, Q5_K and Q6_K.
inline constexpr TwoLevelBlock kTwoLevelBlocks[] = {{Code::i4, Zero::minimum, 16},
                                                    {Code::i4, Zero::none, 16},
                                                    {Code::i4, Zero::minimum, 32},
                                                    {Code::i5, Zero::minimum, 32},
                                                    {Code::i6, Zero::none, 16}};

}  // namespace tandem
