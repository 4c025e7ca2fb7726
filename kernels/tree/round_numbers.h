#pragma once
// Which random number of a round is for what; for host and device code.
#include "base/rng.h"

namespace tandem {

/// A round of a sequence and its seed: names of its numbers.
struct RoundNames {
  uint64_t seed;
  uint32_t sequence;
  uint32_t position;  // tokens committed when the round begins, the tree's root included
};

/// The number that a node itself is tried with.
constexpr double coin_of(const RoundNames& r, int node) {
  return draw_uniform(r.seed, r.sequence, r.position, DrawPurpose::accept,
                      static_cast<uint32_t>(node));
}

/// The number that the token after a node is drawn with. What remains of a law that rejections have
/// shaped, `is_rest`, is drawn with a number of its own. Else the number is plain sampling's at the
/// token's position, so that both give the same text.
/// depth    of the node; of the root 0
constexpr double uniform_after(const RoundNames& r, int node, int depth, bool is_rest) {
  return is_rest ? draw_uniform(r.seed, r.sequence, r.position, DrawPurpose::residual,
                                static_cast<uint32_t>(node))
                 : draw_uniform(r.seed, r.sequence, r.position + static_cast<uint32_t>(depth),
                                DrawPurpose::sample);
}

}  // namespace tandem
