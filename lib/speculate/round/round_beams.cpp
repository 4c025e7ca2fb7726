#include "base/check.h"
#include "ops/verification.h"
#include "speculate/round/round.h"

namespace tandem::speculate {

BeamMasks Round::masks_of(const kv::Step& step, int first_node) const {
  const ops::StepArrays& a = step.arrays;
  // Kernels of the forward only read them; they lie in memory of the step or of an outbox.
  return {.mask = const_cast<uint64_t*>(a.tree_mask),
          .words = a.mask_words,
          .rows_each = a.n_rows / a.n_seqs,
          .first_node = first_node,
          .tentative = a.tentative};
}

void Round::grow_beams(int level, float temperature) {
  const auto last = static_cast<size_t>(tree_->levels()) - 1, next = static_cast<size_t>(level) + 1;
  const int width = tree_->level_begin[next + 1] - tree_->level_begin[next];
  TANDEM_CHECK(width <= bounds_.beams && masks_.size() == last + 1,
               "unexpected {} beams after {} forward passes", width, masks_.size());
  ops::grow_beams({.tokens = tokens_.device,
                   .parent = parent_.device,
                   .first_child = first_child_.device,
                   .n_children = n_children_.device,
                   .scores = beam_scores_,
                   .whole = masks_[last],
                   .next = next < last ? masks_[next] : BeamMasks{},
                   .logits = level_logits(level).as<float>(),
                   .n_seqs = places_,
                   .n_nodes = tree_->size(),
                   .vocab = bounds_.vocab,
                   .width = width,
                   .level = static_cast<int>(next),
                   .temperature = temperature,
                   .workspace = beam_scores_ + bounds_.max_seqs * bounds_.beams},
                  exec_.stream());
  if (exec_.on_gpu()) return;  // such a round proposes nothing from there on
  for (size_t b = 0; b < seqs_.size(); ++b)
    ops::check_valid(host_tokens(b).subspan(static_cast<size_t>(tree_->level_begin[next]),
                                            static_cast<size_t>(width)));
}

}  // namespace tandem::speculate
