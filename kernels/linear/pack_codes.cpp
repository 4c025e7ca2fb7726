#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/linear/quantized_linear_cpu.h"

namespace tandem {
namespace {

int group_of(const CodedMatrix& m) { return m.group == 0 ? m.in : m.group; }

/// Places the scales and zeros of a row in a panel, and its codes in order, one a byte.
/// shapes   codes [m.inputs()], zeros past the last input
void split_row(const CodedMatrix& m, const uint8_t* row, std::byte* panel, int output,
               uint8_t* codes) {
  const int group = group_of(m), scale_size = m.scale_bytes(), zero_size = m.zero_bytes();
  const int code_bytes = m.code == Code::i4 ? (group + 1) / 2 : group;
  for (int first = 0, g = 0; first < m.in; first += group, ++g) {
    const int n = std::min(group, m.in - first);
    if (m.code == Code::fp8)
      std::memcpy(codes + first, row, static_cast<size_t>(n));
    else if (m.code == Code::i8)
      for (int i = 0; i < n; ++i) codes[first + i] = row[i] ^ 0x80u;
    else
      for (int i = 0; i < n; ++i) codes[first + i] = row[i / 2] >> (i % 2 * 4) & 15;
    row += code_bytes;
    const int place = g * kCodePanel + output;
    std::memcpy(panel + m.scales_at() + place * scale_size, row, static_cast<size_t>(scale_size));
    std::memcpy(panel + m.zeros_at() + place * zero_size, row + scale_size,
                static_cast<size_t>(zero_size));
    row += scale_size + zero_size;
  }
}

uint32_t four(const uint8_t* codes) {
  uint32_t both;
  std::memcpy(&both, codes, sizeof both);
  return both;
}

/// Places the codes of an output in a panel, four inputs at a time.
void place_codes(const CodedMatrix& m, const uint8_t* codes, std::byte* panel, int output) {
  for (int step = 0; step < m.steps(); ++step, codes += kCodeStep) {
    std::byte* to = panel + step * m.step_bytes() + 4 * output;
    const int inputs = m.code == Code::i4 ? kInputGroup : kCodeStep;  // high halves hold the rest
    for (int i = 0; i < inputs; i += 4, to += 4 * kCodePanel) {
      uint32_t lines = four(codes + i);
      if (m.code == Code::i4) lines |= four(codes + kInputGroup + i) << 4;
      std::memcpy(to, &lines, sizeof lines);
    }
  }
}

constexpr int kFactorBytes = 2;

/// Places the blocks of a row in a panel.
void place_blocks(const CodedMatrix& m, const uint8_t* row, std::byte* panel, int output) {
  const TwoLevelPanel layout{m.block()};
  const auto& block = layout.row;
  for (int i = 0; i < m.blocks(); ++i, row += block.bytes(), panel += layout.bytes()) {
    auto* const to = reinterpret_cast<uint8_t*>(panel);
    for (int k = 0; k < kTwoLevelInputs; ++k) {
      const int code = block.code_at(row, k), line = k / 4, step = k / kCodeStep;
      const int in_step = line % (kCodeStep / 4), half = in_step % (kCodeStep / 8);
      const int place = 4 * output + k % 4;
      uint8_t* const of_step = to + step * layout.step_bytes();
      of_step[half * 4 * kCodePanel + place] |=
          static_cast<uint8_t>((code & 15) << (in_step == half ? 0 : 4));
      if (block.high_bits() == 0) continue;
      const int lines = layout.lines_of_high();
      of_step[layout.low_bytes() + in_step / lines * 4 * kCodePanel + place] |=
          static_cast<uint8_t>(code >> 4 << (in_step % lines * block.high_bits()));
    }
    for (int g = 0; g < block.factors_at() - block.scales_at(); ++g)
      to[layout.scales_at() + g * kCodePanel + output] = row[block.scales_at() + g];
    for (int f = 0; f < block.bytes() - block.factors_at(); f += kFactorBytes)
      std::memcpy(to + layout.factors_at() + f * kCodePanel + output * kFactorBytes,
                  row + block.factors_at() + f, kFactorBytes);
  }
}

}  // namespace

void pack_codes(const PackCodesParams& p, Range panels) {
  const CodedMatrix& m = p.matrix;
  const auto bytes = static_cast<int64_t>(row_bytes(format_of(m), m.in));
  std::vector<uint8_t> codes(static_cast<size_t>(m.inputs()));
  for (int64_t i = panels.begin; i < panels.end; ++i) {
    std::byte* const panel = static_cast<std::byte*>(p.panels) + i * m.panel_bytes();
    std::memset(panel, 0, static_cast<size_t>(m.panel_bytes()));
    const int64_t first = i * kCodePanel;
    for (int64_t n = 0; n < std::min<int64_t>(kCodePanel, p.n_rows - first); ++n) {
      const auto* const row = static_cast<const uint8_t*>(p.rows) + (first + n) * bytes;
      if (m.two_level()) {
        place_blocks(m, row, panel, static_cast<int>(n));
        continue;
      }
      split_row(m, row, panel, static_cast<int>(n), codes.data());
      place_codes(m, codes.data(), panel, static_cast<int>(n));
    }
  }
}

}  // namespace tandem
