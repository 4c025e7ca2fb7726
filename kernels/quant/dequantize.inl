#include "kernels/quant/dequantize.h"

#include "kernels/quant/group_vectors.h"

namespace tandem {
namespace {

/// The number of a scale or a minimum at any address.
TANDEM_INLINE Vec number_at(const uint8_t* at, ScaleType type) {
  if (type == ScaleType::f32) {
    float number;
    memcpy(&number, at, sizeof(number));
    return set1(number);
  }
  uint16_t bits[kW];
  for (uint16_t& b : bits) memcpy(&b, at, sizeof(b));
  return type == ScaleType::f16 ? load(reinterpret_cast<const f16*>(bits))
                                : load(reinterpret_cast<const bf16*>(bits));
}

/// A weight is scale * (code - zero) + minimum.
struct GroupRule {
  Vec scale, zero, minimum;
};

/// at   the end of a group's codes
TANDEM_INLINE GroupRule rule_at(const DequantizeParams& p, const uint8_t* at) {
  // Adding -0 leaves every number as it is.
  GroupRule rule = {number_at(at, p.scale), zero(), set1(-0.0f)};
  if (p.zero == Zero::minimum)
    rule.minimum = number_at(at + (p.scale == ScaleType::f32 ? 4 : 2), p.scale);
  else if (p.zero == Zero::integer)
    rule.zero = set1(static_cast<float>(p.code == Code::i4 ? int{at[2]} : int8_t(at[2])));
  else
    rule.zero = set1(static_cast<float>(CodeBits{p.code, p.group}.offset(p.zero)));
  return rule;
}

template <class T>
TANDEM_INLINE void widen_codes(const GroupRule& rule, const int8_t* codes, T* out, int n) {
  each_vector(n, [&](int i, int lanes) {
    const Vec product = rule.scale * (part_of(codes + i, lanes) - rule.zero);
    put(out + i, product + rule.minimum, lanes);
  });
}

template <class T>
TANDEM_INLINE void widen_group(const DequantizeParams& p, const uint8_t* group, T* out, int n) {
  const CodeBits bits{p.code, p.group};
  const GroupRule rule = rule_at(p, group + bits.bytes());
  if (p.code == Code::i8) return widen_codes(rule, reinterpret_cast<const int8_t*>(group), out, n);
  if (p.code == Code::fp8) {
    float numbers[kCodesAtOnce];
    for (int i = 0; i < n; i += kCodesAtOnce) {
      const int some = least(kCodesAtOnce, n - i);
      for (int j = 0; j < some; ++j) numbers[j] = fp8_number(group[i + j]);
      each_vector(some, [&](int j, int lanes) {
        put(out + i + j, rule.scale * part_of(numbers + j, lanes), lanes);
      });
    }
    return;
  }
  int8_t codes[kCodesAtOnce];
  for (int i = 0; i < n; i += kCodesAtOnce) {
    const int some = least(kCodesAtOnce, n - i);
    if (p.code == Code::i4)
      unpack_pairs(codes, group + i / 2, (some + 1) / 2);
    else
      for (int j = 0; j < some; ++j) codes[j] = static_cast<int8_t>(bits.code_at(group, i + j));
    widen_codes(rule, codes, out + i, some);
  }
}

/// The first n numbers of a block with scales of two levels.
template <class T>
TANDEM_INLINE void widen_block(const TwoLevelBlock& b, const uint8_t* block, T* out, int n) {
  int8_t codes[kTwoLevelInputs];
  for (int i = 0; i < kTwoLevelInputs; ++i)
    codes[i] = static_cast<int8_t>(b.codes().code_at(block, i));
  const bool has_minimum = b.zero == Zero::minimum;
  const auto product = [&](int factor, int integer) {
    const auto number = static_cast<float>(static_cast<int8_t>(block[integer]));
    return number_at(block + factor, ScaleType::f16) * set1(number);
  };
  for (int i = 0, g = 0; i < n; i += b.group, ++g) {
    GroupRule rule = {product(b.factors_at(), b.scales_at() + g),
                      set1(static_cast<float>(b.offset())), set1(-0.0f)};
    if (has_minimum) rule.minimum = product(b.factors_at() + 2, b.minima_at() + g);
    widen_codes(rule, codes + i, out + i, least(b.group, n - i));
  }
}

template <class T>
void widen_blocks(const DequantizeParams& p, Range rows) {
  const TwoLevelBlock b{p.code, p.zero, p.group};
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint8_t* block = p.in + row * p.row_bytes;
    T* out = static_cast<T*>(p.out) + row * p.width;
    for (int i = 0; i < p.width; i += kTwoLevelInputs, block += b.bytes())
      widen_block(b, block, out + i, least(kTwoLevelInputs, p.width - i));
  }
}

template <class T>
void widen_rows(const DequantizeParams& p, Range rows) {
  if (p.scale == ScaleType::two_level) return widen_blocks<T>(p, rows);
  const int scale = p.scale == ScaleType::f32 ? 4 : 2;
  const int zero = p.zero == Zero::none ? 0 : p.zero == Zero::integer ? 1 : scale;
  const int bytes = CodeBits{p.code, p.group}.bytes() + scale + zero;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const uint8_t* group = p.in + row * p.row_bytes;
    T* out = static_cast<T*>(p.out) + row * p.width;
    for (int i = 0; i < p.width; i += p.group, group += bytes)
      widen_group(p, group, out + i, least(p.group, p.width - i));
  }
}

}  // namespace

void TANDEM_ISA_FN(dequantize)(const DequantizeParams& p, Range rows) {
  if (p.to == DType::bf16)
    widen_rows<bf16>(p, rows);
  else
    widen_rows<float>(p, rows);
}

}  // namespace tandem
