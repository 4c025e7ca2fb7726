#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/linear/quantized_linear.h"

namespace tandem {
namespace {

constexpr int kScaleBytes = 2;

int zero_bytes(Zero zero) { return zero == Zero::none ? 0 : zero == Zero::integer ? 1 : 2; }

/// A code of a group as products of integers read it.
uint8_t code_of(const CodedMatrix& m, const std::byte* codes, int i) {
  if (m.code == Code::i8) return static_cast<uint8_t>(static_cast<uint8_t>(codes[i]) ^ 0x80u);
  const auto both = static_cast<uint8_t>(codes[i / 2]);
  return i % 2 == 0 ? both & 15 : both >> 4;
}

/// Place of an output's input in a panel's codes; i4 keep the second half of a step high.
void put_code(const CodedMatrix& m, std::byte* panel, int output, int input, uint8_t code) {
  const int in_step = input % kCodeStep;
  std::byte* const step = panel + input / kCodeStep * m.step_bytes();
  const auto at = [&](int i) { return i / 4 * 4 * kCodePanel + 4 * output + i % 4; };
  if (m.code == Code::i8)
    step[at(in_step)] = static_cast<std::byte>(code);
  else
    step[at(in_step % kInputGroup)] |=
        static_cast<std::byte>(in_step < kInputGroup ? code : code << 4);
}

void pack_row(const CodedMatrix& m, const std::byte* row, std::byte* panel, int output) {
  const int group = m.group == 0 ? m.in : m.group;
  const int zero_size = zero_bytes(m.zero);
  const int code_bytes = m.code == Code::i4 ? (group + 1) / 2 : group;
  for (int first = 0, g = 0; first < m.in; first += group, ++g) {
    for (int i = 0; i < std::min(group, m.in - first); ++i)
      put_code(m, panel, output, first + i, code_of(m, row, i));
    row += code_bytes;
    const int place = g * kCodePanel + output;
    std::memcpy(panel + m.scales_at() + place * kScaleBytes, row, kScaleBytes);
    std::memcpy(panel + m.zeros_at() + place * zero_size, row + kScaleBytes,
                static_cast<size_t>(zero_size));
    row += kScaleBytes + zero_size;
  }
}

}  // namespace

void pack_codes(const PackCodesParams& p, Range panels) {
  const CodedMatrix& m = p.matrix;
  const int group = m.group == 0 ? m.in : m.group;
  const int64_t group_bytes =
      (m.code == Code::i4 ? (group + 1) / 2 : group) + kScaleBytes + zero_bytes(m.zero);
  const int64_t row_bytes = (m.in + group - 1) / group * group_bytes;
  for (int64_t i = panels.begin; i < panels.end; ++i) {
    std::byte* const panel = static_cast<std::byte*>(p.panels) + i * m.panel_bytes();
    std::memset(panel, 0, static_cast<size_t>(m.panel_bytes()));
    const int64_t first = i * kCodePanel;
    for (int64_t n = 0; n < std::min<int64_t>(kCodePanel, p.n_rows - first); ++n)
      pack_row(m, static_cast<const std::byte*>(p.rows) + (first + n) * row_bytes, panel,
               static_cast<int>(n));
  }
}

}  // namespace tandem
