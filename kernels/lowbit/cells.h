#pragma once
// The quantizer of coded_pages.h: Lloyd-Max for a standard normal variable with 16 levels, as whole
// numbers. Plain constants, for sources compiled with per-ISA flags too.
#include <stdint.h>

namespace tandem {
namespace {

/// Where the cells of magnitudes begin, in units of m; the last one ends at 4.
constexpr float kCells[9] = {0, .2582f, .5224f, .7995f, 1.0993f, 1.4371f, 1.8435f, 2.4008f, 4.0f};
/// Their levels in 46ths of m: exact in eight bits and in bf16.
constexpr int kLevels[8] = {6, 18, 30, 43, 58, 74, 95, 126};
constexpr float kLevelUnit = 1.0f / 46;
/// Where they begin in 736ths of m, where further bits divide them.
constexpr int kEdges[9] = {0, 190, 384, 588, 809, 1058, 1357, 1767, 2944};
constexpr float kEdgeUnit = 1.0f / 736;

/// Rows of smaller norm become 0.
constexpr float kLeastNorm = 0x1p-60f;

}  // namespace
}  // namespace tandem
