#include <cstring>

#include "base/two_level.h"
#include "kernels/quant/dequantize.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

double scale_at(const uint8_t* at, ScaleType type) {
  if (type == ScaleType::f32) {
    float number = 0;
    std::memcpy(&number, at, sizeof(number));
    return number;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return type == ScaleType::f16 ? to_float(f16{bits}) : to_float(bf16{bits});
}

double code_at(const uint8_t* codes, Code code, int group, int i) {
  if (code == Code::fp8) return fp8_number(codes[i]);
  if (code == Code::i8) return static_cast<int8_t>(codes[i]);
  return CodeBits{code, group}.code_at(codes, i);
}

int code_bytes(const DequantizeParams& p) { return CodeBits{p.code, p.group}.bytes(); }
/// The number that is subtracted from codes.
int offset(const DequantizeParams& p) { return CodeBits{p.code, p.group}.offset(p.zero); }
int scale_bytes(const DequantizeParams& p) { return p.scale == ScaleType::f32 ? 4 : 2; }
int zero_bytes(const DequantizeParams& p) {
  return p.zero == Zero::none ? 0 : p.zero == Zero::integer ? 1 : scale_bytes(p);
}

double weight_at(const DequantizeParams& p, const uint8_t* group, int i) {
  const uint8_t *tail = group + code_bytes(p), *zero = tail + scale_bytes(p);
  const double scale = scale_at(tail, p.scale), code = code_at(group, p.code, p.group, i);
  switch (p.zero) {
    case Zero::none:
      return scale * (code - offset(p));
    case Zero::integer:
      return scale * (code - (p.code == Code::i4 ? *zero : static_cast<int8_t>(*zero)));
    default:
      return scale * code + scale_at(zero, p.scale);
  }
}

double weight_of_block(const DequantizeParams& p, const uint8_t* block, int i) {
  const TwoLevelBlock b{p.code, p.zero, p.group};
  const auto product = [&](int factor, int integer) {
    const auto number = static_cast<float>(static_cast<int8_t>(block[integer + i / b.group]));
    return static_cast<float>(scale_at(block + factor, ScaleType::f16)) * number;
  };
  const double weight =
      double{product(b.factors_at(), b.scales_at())} * (b.codes().code_at(block, i) - b.offset());
  return b.zero == Zero::none ? weight : weight + product(b.factors_at() + 2, b.minima_at());
}

}  // namespace

void dequantize_ref(const DequantizeParams& p, Range rows) {
  if (p.scale == ScaleType::two_level) {
    const int bytes = TwoLevelBlock{p.code, p.zero, p.group}.bytes();
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int i = 0; i < p.width; ++i)
        put(p.out, p.to, row * p.width + i,
            weight_of_block(p, p.in + row * p.row_bytes + i / kTwoLevelInputs * bytes,
                            i % kTwoLevelInputs));
    return;
  }
  const int bytes = code_bytes(p) + scale_bytes(p) + zero_bytes(p);
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int i = 0; i < p.width; ++i)
      put(p.out, p.to, row * p.width + i,
          weight_at(p, p.in + row * p.row_bytes + i / p.group * bytes, i % p.group));
}

}  // namespace tandem
