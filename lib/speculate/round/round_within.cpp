#include <algorithm>

#include "ops/verification.h"
#include "speculate/round/round.h"

namespace tandem::speculate {

void Round::begin_within(const TokenTree& tree) {
  seqs_ = around_->seqs_;
  sampler_ = around_->sampler_;
  most_pending_ = around_->most_pending_ + around_->tree_->levels() - 1;
  tree_ = &tree;
  places_ = around_->places_;
  outbox_ = around_->outbox_;
  // Where each goes on in the next turn.
  std::vector<int> own(seqs_.size());
  for (size_t b = 0; b < own.size(); ++b) own[b] = static_cast<int>(b);
  lay_out(own);
}

void Round::grow(int enough) {
  grows_ = true;
  const int most = tree_->levels() - 1;
  std::fill_n(enough_.host, places_, 0);
  std::fill_n(most_.host, places_, most);
  std::fill_n(enough_.host, seqs_.size(), std::min(enough, most));
}

void Round::enter(int turn) {
  turn_ = turn;
  clock_.device = around_->clocks_.device + turn * n_moments;
  if (turn == 0)
    catch_up(around_->ends_, around_->prior_.device);
  else
    catch_up(ends_, prior_.device);
}

void Round::look_up(int longest) {
  const Round& to = *around_;
  ops::propose_lookup({.tokens = tokens_.device,
                       .n_children = n_children_.device,
                       .n_proposed = to.found_.device + turn_ * places_,
                       .seen = seen_,
                       .seen_begin = seen_begin_.device,
                       .chain_length = turn_ == 0 ? nullptr : to.length_.device,
                       .n_seqs = places_,
                       .n_nodes = tree_->size(),
                       .n_room = seen_room(),
                       .longest = longest},
                      exec_.stream());
}

void Round::append(const Tensor& logits, bool is_last) {
  Round& to = *around_;
  ops::append_round(
      {.chain_tokens = to.tokens_.device,
       .chain_children = to.n_children_.device,
       .chain_length = to.length_.device,
       .chain_logits = to.draft_logits_.as<float>(),
       .chain_row = to.draft_row_.device,
       .enough = to.enough_.device,
       .most = to.most_.device,
       .forced = to.is_forced_ && is_last ? to.forced_counts(to.forced_.device) : nullptr,
       .seen = seen_,
       .seen_begin = seen_begin_.device,
       .tokens = tokens_.device,
       .path = path_.device,
       .n_accepted = n_accepted_.device,
       .bonus = bonus_.device,
       .newest = newest_.device,
       .logits = logits.as<float>(),
       .ends = ends_,
       .taken = to.taken_.device + turn_ * places_,
       .n_seqs = places_,
       .n_nodes = tree_->size(),
       .n_chain = to.tree_->size(),
       .vocab = bounds_.vocab,
       .max_kept = tree_->levels(),
       .is_first = turn_ == 0},
      exec_.stream());
}

}  // namespace tandem::speculate
