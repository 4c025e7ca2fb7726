#include "speculate/draft/model_drafter.h"

#include <algorithm>

#include "ops/sampling.h"
#include "speculate/draft/pair.h"
#include "speculate/round/rounds.h"

namespace tandem::speculate {

size_t ModelDrafter::outbox_bytes(const TreeRoom& tree, int max_seqs) {
  constexpr int kUnread = DraftSequences::kMaxUnread;
  const auto seqs = static_cast<size_t>(max_seqs);
  return kv::DeviceStep::outbox_bytes(max_seqs, max_seqs * (tree.inner + kUnread)) +
         Outbox::aligned(seqs * kUnread * sizeof(int32_t)) +
         Outbox::aligned(seqs * sizeof(int32_t));
}

ModelDrafter::ModelDrafter(Reader draft, Reader target, TokenTree tree)
    : draft_(draft),
      is_self_(draft.engine == target.engine),
      vocab_(target.engine->config().vocab_size),
      tree_(std::move(tree)),
      sequences_(draft, target, tree_) {}

std::string ModelDrafter::name() const { return is_self_ ? "self" : draft_.engine->files().name; }

int ModelDrafter::max_places() const {
  const RoundNeeds one = draft_needs(TreeRoom::of(tree_), 1);
  return std::min(draft_.engine->room_for_places(one.rows, one.logit_rows),
                  draft_.engine->spec().max_seqs);
}

void ModelDrafter::prepare(Round& round) {
  if (sequences_.is_lone_root()) return;
  const std::span<const decode::DrawSeq> seqs = round.seqs();
  const auto places = static_cast<size_t>(round.places());
  kv_bytes_before_ = draft_.kv_bytes();
  sequences_.read(seqs);
  steps_ = &sequences_.begin(seqs, round.outbox(), round.places());
  const int n_first = steps_->front().arrays.n_rows;
  unread_ = round.outbox().take<int32_t>(static_cast<size_t>(n_first));
  root_row_ = round.outbox().take<int32_t>(places);
  std::fill_n(unread_.host, n_first, 0);
  std::fill_n(root_row_.host, places, 0);
  const int vocab = draft_.engine->config().vocab_size;
  int n = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    for (const int32_t id : sequences_.unread(seqs[b])) unread_.host[n++] = id < vocab ? id : 0;
    root_row_.host[b] = n - 1;
  }
  for (int level = 0; level < n_levels_run(); ++level)
    draft_.engine->choose_products((*steps_)[static_cast<size_t>(level)].arrays.n_rows,
                                   round.level_logits(level).rows());
}

void ModelDrafter::draft(Round& round) {
  model::Llama& model = draft_.engine->model();
  const int vocab = draft_.engine->config().vocab_size;
  for (int level = 0; level < n_levels_run(); ++level) {
    const bool is_first = level == 0;
    model.forward_ids(is_first ? unread_.device : round.level_ids(level, vocab),
                      (*steps_)[static_cast<size_t>(level)], draft_.engine->cache());
    const Tensor wanted = round.level_logits(level);
    // Vocabularies may differ in padding.
    const Tensor logits =
        vocab == vocab_ ? wanted : draft_.engine->logit_rows().slice(0, wanted.rows());
    model.logits(logits, is_first ? root_row_.device : round.level_rows(level));
    if (vocab != vocab_)
      ops::widen_rows({.out = wanted.as<float>(),
                       .in = logits.as<float>(),
                       .n_rows = static_cast<int>(wanted.rows()),
                       .from = vocab,
                       .to = vocab_},
                      draft_.engine->exec().stream());
    round.draw_children(level);
  }
}

void ModelDrafter::keep(Round& round) {
  if (!sequences_.is_lone_root()) sequences_.keep(round.paths(sequences_.nodes_run()));
}

void ModelDrafter::accept(const Round& round) {
  if (sequences_.is_lone_root()) return;
  paths_.clear();
  for (size_t b = 0; b < round.n_seqs(); ++b) paths_.push_back(round.path(b));
  sequences_.accept(paths_);
  bytes_read_ += n_levels_run() * static_cast<double>(draft_.engine->weight_bytes()) +
                 draft_.kv_bytes() - kv_bytes_before_;
}

}  // namespace tandem::speculate
