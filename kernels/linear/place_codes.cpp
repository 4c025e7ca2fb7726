#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "base/two_level.h"
#include "kernels/linear/code_tiles.h"

namespace tandem {
namespace {

uint16_t f16_bits(float value) { return to_f16(value).bits; }

/// A row in the form of base/weight_format.h.
struct CodedRow {
  const PlaceCodesParams& p;
  const uint8_t* at;
  const CodeTiles& m = p.tiles;
  bool two_level = p.row_scale == ScaleType::two_level;
  TwoLevelBlock block = {p.row_code, m.zero, m.group};
  /// Inputs whose codes are followed by scales.
  int span = two_level ? kTwoLevelInputs : m.group == 0 ? m.in : m.group;
  CodeBits bits = {p.row_code, span};
  int span_bytes = two_level ? block.bytes() : bits.bytes() + m.scale_bytes() + m.zero_bytes();
  /// Added to codes; to i8 it is also 128.
  int more = m.code != Code::i8 ? 0 : 128 - bits.offset(m.zero);

  /// Unpacks inputs [first, first + 16) to one byte each; those past the last one are 0.
  void unpack(int first, uint8_t* to) const {
    const int n = std::clamp(m.in - first, 0, 16);
    std::memset(to, 0, 16);
    for (int i = 0; i < n;) {
      const int in_span = (first + i) % span, last = std::min(n, i + span - in_span);
      const uint8_t* const from = at + (first + i) / span * span_bytes;
      for (int k = in_span; i < last; ++i, ++k)
        to[i] = static_cast<uint8_t>(bits.code_at(from, k) + more);
    }
  }
  /// Writes the scale and the zero of a group.
  void put_scale(int g, uint8_t* scale, uint8_t* zero) const {
    if (!two_level) {
      const uint8_t* const from = at + g * span_bytes + bits.bytes();
      std::memcpy(scale, from, static_cast<size_t>(m.scale_bytes()));
      std::memcpy(zero, from + m.scale_bytes(), static_cast<size_t>(m.zero_bytes()));
      return;
    }
    const uint8_t* const from = at + g / block.groups() * block.bytes();
    const auto put = [&](int integers, int factor, uint8_t* to) {
      f16 f;
      std::memcpy(&f.bits, from + factor, sizeof f.bits);
      const auto integer = static_cast<int8_t>(from[integers + g % block.groups()]);
      const uint16_t product = f16_bits(to_float(f) * static_cast<float>(integer));
      std::memcpy(to, &product, sizeof product);
    };
    put(block.scales_at(), block.factors_at(), scale);
    if (m.zero == Zero::minimum) put(block.minima_at(), block.factors_at() + 2, zero);
  }
};

/// Writes the words of all lanes for 16 inputs: 4 bytes of one word (i4), or two words (i8).
/// codes    [16 outputs][16 inputs]
void place_step(const CodeTiles& m, const uint8_t (&codes)[16][16], uint8_t* to) {
  for (int lane = 0; lane < 32; ++lane, to += 16) {
    const int g = lane / 4, t = lane % 4;
    uint32_t words[2] = {};
    for (int h = 0; h < 2; ++h)
      for (int high = 0; high < 2; ++high)
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t code = codes[g + 8 * high][8 * h + 2 * t + odd];
          if (m.code == Code::i4)
            words[0] |= code << (4 * (high + 2 * h) + 16 * odd);
          else
            words[h] |= code << (8 * high + 16 * odd);
        }
    std::memcpy(to, words, m.code == Code::i4 ? 4 : 8);
  }
}

void place_tile(const CodeTiles& m, const CodedRow (&rows)[16], int across, uint8_t* to) {
  const int steps = kPieceBytes / (m.code == Code::i4 ? 128 : 256);  // 16 inputs each, in a piece
  uint8_t codes[16][16];
  for (int s = 0; s < kTileInputs / 16; ++s) {
    for (int r = 0; r < kTileOutputs; ++r) rows[r].unpack(across * kTileInputs + 16 * s, codes[r]);
    place_step(m, codes, to + s / steps * kPieceBytes + s % steps * (16 / steps));
  }
}

/// Writes an output's codes in the strips of a tile, which are 0.
void place_output(const CodedRow& row, int across, int r, uint8_t* to) {
  const CodeTiles& m = row.m;
  uint8_t codes[16];
  for (int k = 0; k < kTileInputs; ++k, to += m.strip_bytes()) {
    if (k % 16 == 0) row.unpack(across * kTileInputs + k, codes);
    if (m.code == Code::i4)
      to[r / 2] |= static_cast<uint8_t>(codes[k % 16] << (4 * (r % 2)));
    else
      to[r] = codes[k % 16];
  }
}

/// Writes the scales and zeros of an output of a tile.
void place_scales(const CodedRow& row, int across, int r, uint8_t* to) {
  const CodeTiles& m = row.m;
  for (int u = 0; u < m.units(); ++u) {
    const int input = across * kTileInputs + u * m.unit(), place = u * m.outputs_of_tile() + r;
    if (input < m.in)
      row.put_scale(m.group == 0 ? 0 : input / m.group,
                    to + m.scales_at() + place * m.scale_bytes(),
                    to + m.zeros_at() + place * m.zero_bytes());
  }
}

}  // namespace

void place_codes(const PlaceCodesParams& p, Range tiles) {
  const CodeTiles& m = p.tiles;
  for (int i = tiles.begin; i < tiles.end; ++i) {
    // Rows that pad a tile have the codes of another row, and scales of 0.
    const auto is_real = [&](int r) { return m.is_output(p.first + i, r); };
    const auto row = [&](int r) {
      return CodedRow{p, p.rows + m.place(p.first, p.n, i, is_real(r) ? r : 0) * p.row_bytes};
    };
    uint8_t* to = p.to + i * m.row_bytes();
    std::memset(to, 0, static_cast<size_t>(m.row_bytes()));
    for (int across = 0; across < m.across(); ++across, to += m.tile_bytes()) {
      if (!m.by_input)
        place_tile(m,
                   {row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7), row(8), row(9),
                    row(10), row(11), row(12), row(13), row(14), row(15)},
                   across, to);
      for (int r = 0; r < m.outputs_of_tile(); ++r) {
        if (m.by_input) place_output(row(r), across, r, to);
        if (is_real(r)) place_scales(row(r), across, r, to);
      }
    }
  }
}

}  // namespace tandem
