#pragma once
// A matrix of random codes for tests of quantized_linear: its rows, its panels and its weights.
#include <cstring>

#include "kernels/linear/quantized_linear_cpu.h"
#include "kernels/variants.h"

namespace tandem::test {

/// Every format that products take, in a matrix of `in` inputs.
inline std::vector<CodedMatrix> coded_formats(int in) {
  std::vector<CodedMatrix> all;
  for (const Code code : {Code::i4, Code::i8})
    for (const Zero zero : {Zero::none, Zero::integer, Zero::minimum})
      for (const int group : {16, 32, 64, 128, 0})
        all.push_back({code, group == 64 ? ScaleType::bf16 : ScaleType::f16, zero, group, in});
  for (const Zero zero : {Zero::none, Zero::minimum})
    for (const int group : {32, 128, 0}) all.push_back({Code::i5, ScaleType::f16, zero, group, in});
  for (const int group : {16, 32, 128, 0})
    all.push_back(
        {Code::fp8, group == 32 ? ScaleType::bf16 : ScaleType::f32, Zero::none, group, in});
  for (const TwoLevelBlock& b : kTwoLevelBlocks)
    all.push_back({b.code, ScaleType::two_level, b.zero, b.group, in});
  return all;
}

/// Memory that begins at a line.
class Lines {
 public:
  explicit Lines(size_t bytes) : memory_(bytes + 64) {}
  void* data() {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - at % 64) % 64;
  }

 private:
  std::vector<std::byte> memory_;
};

struct CodedCase {
  CodedMatrix m;
  int out, rows;
  DType x_type;
  std::vector<uint8_t> codes;  // [out] rows of codes
  ActBuffer x;                 // [rows, in]
  std::vector<float> bias, start;
  Lines panels;

  CodedCase(CodedMatrix matrix, int outputs, int n_rows, DType type = DType::f32)
      : m(matrix),
        out(outputs),
        rows(n_rows),
        x_type(type),
        x(type, static_cast<size_t>(n_rows) * static_cast<size_t>(matrix.in)),
        panels(static_cast<size_t>(n_panels() * m.panel_bytes())) {
    PhiloxStream rng(42, static_cast<uint32_t>(m.group * 7 + m.in));
    fill(x, rng, 2.0f);
    const auto some = [&](size_t n) {
      std::vector<float> v(n);
      for (float& value : v) value = random_float(rng, 1.0f);
      return v;
    };
    bias = some(static_cast<size_t>(out));
    start = some(static_cast<size_t>(out) * static_cast<size_t>(rows));
    const int group = m.group == 0 ? m.in : m.group;
    const auto put = [&](float value) {
      if (m.scale == ScaleType::f32) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
        codes.insert(codes.end(), bytes, bytes + sizeof value);
        return;
      }
      const uint16_t bits = m.scale != ScaleType::bf16 ? to_f16(value).bits : to_bf16(value).bits;
      codes.push_back(static_cast<uint8_t>(bits));
      codes.push_back(static_cast<uint8_t>(bits >> 8));
    };
    const int blocks = m.two_level() ? out * m.blocks() : 0;
    for (int i = 0; i < blocks; ++i) {
      for (int byte = 0; byte < m.block().factors_at(); ++byte)
        codes.push_back(static_cast<uint8_t>(rng.below(256)));
      put(random_float(rng, 0.01f));
      if (m.zero == Zero::minimum) put(random_float(rng, 0.05f));
    }
    for (int o = 0; o < out && !m.two_level(); ++o)
      for (int first = 0; first < m.in; first += group) {
        for (int i = 0; i < CodeBits{m.code, group}.bytes(); ++i) {
          const auto code = static_cast<uint8_t>(rng.below(256));
          const bool is_nan = m.code == Code::fp8 && (code & 0x7f) == 0x7f;
          codes.push_back(is_nan ? uint8_t{0x7e} : code);
        }
        put(random_float(rng, 0.1f));
        if (m.zero == Zero::integer) codes.push_back(static_cast<uint8_t>(rng.below(16)));
        if (m.zero == Zero::minimum) put(random_float(rng, 0.5f));
      }
    pack_codes({panels.data(), codes.data(), m, out}, {0, n_panels()});
  }

  int n_panels() const { return (out + kCodePanel - 1) / kCodePanel; }

  QuantizedLinearParams params(float* y, bool add) {
    return {.y = y,
            .x = x.data(),
            .w = panels.data(),
            .bias = add ? bias.data() : nullptr,
            .matrix = m,
            .rows = rows,
            .out = out,
            .y_stride = out,
            .x_type = x_type,
            .y_type = DType::f32,
            .accumulate = add};
  }
  std::vector<float> run(Isa isa, int threads = 1, bool add = false) {
    std::vector<float> y = add ? start : std::vector<float>(start.size(), NAN);
    Lines workspace(quantized_linear_workspace_bytes(m, rows));
    quantized_linear_with(*cpu_table(isa).quantized_linear, params(y.data(), add), workspace.data(),
                          threads);
    return y;
  }
  std::vector<float> reference(bool add = false) {
    std::vector<float> y = start;
    QuantizedLinearParams p = params(y.data(), add);
    p.w = codes.data();
    quantized_linear_ref(p, {0, rows});
    return y;
  }
};

}  // namespace tandem::test
