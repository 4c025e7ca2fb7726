#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/linear/quantized_linear_cpu.h"

namespace tandem {
namespace {

void split_codes(const CodeBits& bits, const uint8_t* row, int n, uint8_t* codes) {
  const int flip = bits.code == Code::i8 ? 0x80 : 0;
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(bits.code_at(row, i) ^ flip);
}

/// Places the scales and zeros of a row in a panel, and its codes in order, one a byte.
/// shapes   codes [m.inputs()], zeros past the last input
void split_row(const CodedMatrix& m, const uint8_t* row, std::byte* panel, int output,
               uint8_t* codes) {
  const int group = m.group == 0 ? m.in : m.group, scale_size = m.scale_bytes(),
            zero_size = m.zero_bytes();
  const CodeBits bits{m.code, group};
  for (int first = 0, g = 0; first < m.in; first += group, ++g) {
    split_codes(bits, row, std::min(group, m.in - first), codes + first);
    row += bits.bytes();
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

/// Places the codes of an output in a step of zeros, four inputs at a time.
void place_step(Code code, const uint8_t* codes, std::byte* step, int output) {
  const CodeBits bits{code, kCodeStep};
  const auto add = [&](int line, uint32_t inputs) {
    std::byte* const to = step + (line * kCodePanel + output) * 4;
    inputs |= four(reinterpret_cast<const uint8_t*>(to));
    std::memcpy(to, &inputs, sizeof inputs);
  };
  constexpr int kLines = kCodeStep / 4;
  for (int line = 0; line < kLines; ++line) {
    const uint32_t inputs = four(codes + 4 * line);
    if (bits.whole()) {
      add(line, inputs);
      continue;
    }
    add(line % (kLines / 2), (inputs & 0x0f0f0f0f) << line / (kLines / 2) * 4);
    if (bits.high_bits() == 0) continue;
    const int lines = 8 / bits.high_bits();  // in a byte of high bits
    add(bits.high_at() / 4 + line / lines, (inputs >> 4 & 0x0f0f0f0f)
                                               << line % lines * bits.high_bits());
  }
}

void place_codes(const CodedMatrix& m, const uint8_t* codes, std::byte* panel, int output) {
  for (int step = 0; step < m.steps(); ++step)
    place_step(m.code, codes + step * kCodeStep, panel + step * m.step_bytes(), output);
}

constexpr int kFactorBytes = 2;

/// Places the blocks of a row in a panel.
void place_blocks(const CodedMatrix& m, const uint8_t* row, std::byte* panel, int output) {
  const TwoLevelPanel layout{m.block()};
  const auto& block = layout.row;
  uint8_t codes[kTwoLevelInputs];
  for (int i = 0; i < m.blocks(); ++i, row += block.bytes(), panel += layout.bytes()) {
    auto* const to = reinterpret_cast<uint8_t*>(panel);
    split_codes(block.codes(), row, kTwoLevelInputs, codes);
    for (int step = 0; step < kTwoLevelInputs / kCodeStep; ++step)
      place_step(m.code, codes + step * kCodeStep, panel + step * layout.step_bytes(), output);
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
