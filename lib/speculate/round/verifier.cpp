#include "speculate/round/verifier.h"

#include <algorithm>

namespace tandem::speculate {
namespace {

int64_t rows_of(const Round& round) { return int64_t{round.places()} * round.tree().size(); }

}  // namespace

bool is_light(decode::Engine& target) {
  return target.queue() != nullptr && static_cast<double>(target.weight_bytes()) < kLightTarget;
}

void Verifier::lay_out(Round& round, std::span<const int32_t> slots, bool is_probe) {
  const TokenTree& tree = round.tree();
  const int64_t n_rows = rows_of(round), group = group_rows(round);
  target().choose_products(n_rows, std::min(n_rows, group));
  target().choose_products(0, n_rows % group);  // of the last group
  if (step_tree_ == &tree && step_.places == round.places() && step_.slot.size() == slots.size()) {
    target().cache().begin_again({&step_, 1}, slots, &round.outbox(), round.most_pending());
  } else {
    std::vector<kv::SeqRows> rows;
    for (const int slot : slots) rows.push_back({slot, tree.size(), false});
    const std::vector<kv::Tree> trees(slots.size(), {tree.parent});
    step_ = target().cache().begin({.rows = rows,
                                    .trees = trees,
                                    .reading = reader_.reading,
                                    .outbox = &round.outbox(),
                                    .places = round.places(),
                                    .ahead = round.most_pending(),
                                    .probe = is_probe});
    step_tree_ = &tree;
  }
  round.follow({&step_, 1});
}

int64_t Verifier::group_rows(const Round& round) const {
  const int64_t nodes = round.tree().size();
  return target().logit_rows().rows() / nodes * nodes;
}

Tensor Verifier::logits(const Round& round, int64_t first) const {
  return target().logit_rows().slice(0, std::min(group_rows(round), rows_of(round) - first));
}

void Verifier::score(Round& round) {
  target().model().forward_ids(round.tokens(), step_, target().cache());
  target().model().logits_from(logits(round, 0), 0);
}

void Verifier::verify(Round& round) {
  for (int64_t first = 0; first < rows_of(round); first += group_rows(round)) {
    const Tensor group = logits(round, first);
    if (first > 0) target().model().logits_from(group, first);
    round.verify(group, rule_, static_cast<int>(first) / round.tree().size());
  }
  round.impose();
  target().cache().move_paths(step_, round.paths(round.tree().size()));
}

}  // namespace tandem::speculate
