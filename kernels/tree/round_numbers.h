#pragma once
// The purposes of a round's random numbers; for host and device code. No STL: included by sources
// compiled with per-ISA flags.
#include "base/philox.h"

namespace tandem {

/// The names of a batch's rounds, in memory of the device that draws: a recorded launch may be
/// repeated with other positions and another seed.
struct RoundNumbers {
  const uint64_t* seed;     // [1]
  const int32_t* sequence;  // [B]
  // [B] tokens committed when the round begins, its root included; of rounds within another one,
  // when that one begins
  const int32_t* position;
  // 0, or which of the rounds within another one, whose numbers are independent; below kMaxStages
  uint32_t stage = 0;
};

inline constexpr uint32_t kMaxStages = 1u << 8;

/// A round of a sequence: names of its numbers.
struct RoundNames {
  uint64_t seed;
  uint32_t sequence, position, stage;
};

namespace {

constexpr RoundNames names_of(const RoundNumbers& n, int b) {
  return {*n.seed, static_cast<uint32_t>(n.sequence[b]), static_cast<uint32_t>(n.position[b]),
          n.stage};
}

constexpr double round_number(const RoundNames& r, uint32_t position, DrawPurpose purpose,
                              uint32_t node) {
  const PhiloxBlock block = philox_block(
      {{r.sequence, position, static_cast<uint32_t>(purpose) | r.stage << 8, node}}, r.seed);
  return uniform_of(block.w[0], block.w[1]);
}

/// The number that a node itself is tried with.
constexpr double coin_of(const RoundNames& r, int node) {
  return round_number(r, r.position, DrawPurpose::accept, static_cast<uint32_t>(node));
}

/// The number that the token after a node is drawn with. What remains of a distribution after
/// rejections, `is_rest`, is drawn with a separate number. Else the number is plain sampling's at
/// the token's position, so that both give the same text; but within another round it is named by
/// the node, as all others are, since such rounds come to a position more than once.
/// depth    of the node; of the root 0
constexpr double uniform_after(const RoundNames& r, int node, int depth, bool is_rest) {
  const auto n = static_cast<uint32_t>(node);
  if (is_rest) return round_number(r, r.position, DrawPurpose::residual, n);
  if (r.stage > 0) return round_number(r, r.position, DrawPurpose::sample, n);
  return round_number(r, r.position + static_cast<uint32_t>(depth), DrawPurpose::sample, 0);
}

}  // namespace
}  // namespace tandem
