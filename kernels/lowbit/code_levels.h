#pragma once
// Cells of the code of coded_pages.h, on both devices, in unnamed namespaces: for sources compiled
// with per-ISA flags too.
#include <stdint.h>

namespace tandem {
namespace {

inline constexpr int kCells = 8;  // of one sign
/// Beginnings of cells of |u|: Lloyd-Max thresholds of 16 levels for a standard normal variable.
/// A number at a threshold is of the cell above it. The last cell ends at 4 where it is divided.
inline constexpr float kCellFrom[kCells + 1] = {0,       0.2582f, 0.5224f, 0.7995f, 1.0993f,
                                                1.4371f, 1.8435f, 2.4008f, 4};
/// Numbers of undivided cells, in 46ths: the levels of the same quantizer. They fit into int8.
inline constexpr int kCellNumber[kCells] = {6, 18, 30, 43, 58, 74, 95, 126};
/// Ends of cells, in 736ths.
inline constexpr int kCellEnd[kCells + 1] = {0, 190, 384, 588, 809, 1058, 1357, 1767, 2944};
inline constexpr int kMostNumber = 2944;

/// Whole numbers of a code of 4, 6 or 8 bits are these parts of m.
constexpr int code_unit(int bits) { return bits == 4 ? 46 : 736; }
/// The number of a cell's part, of which there are 2^(bits - 4).
constexpr int code_number(int bits, int cell, int part) {
  if (bits == 4) return kCellNumber[cell];
  return kCellEnd[cell] + (((2 * part + 1) * (kCellEnd[cell + 1] - kCellEnd[cell])) >> (bits - 3));
}

/// Conditional means of cells by upper planes, in 46ths: by the sign, then by one and two bits of
/// the cell, too.
inline constexpr int kNumbersOf1[1] = {37}, kNumbersOf2[2] = {23, 74},
                     kNumbersOf3[4] = {12, 36, 65, 103};

}  // namespace
}  // namespace tandem
