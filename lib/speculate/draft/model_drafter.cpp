#include "speculate/draft/model_drafter.h"

#include <algorithm>

#include "ops/sampling.h"
#include "speculate/draft/pair.h"
#include "speculate/round/rounds.h"

namespace tandem::speculate {

namespace {

std::vector<int> slots_of(std::span<const decode::DrawSeq> seqs) {
  std::vector<int> slots;
  for (const decode::DrawSeq& s : seqs) slots.push_back(s.slot);
  return slots;
}

std::vector<TokenTree> chains_of(const std::vector<int>& gammas) {
  std::vector<TokenTree> chains;
  for (const int gamma : gammas) chains.push_back(chain_tree(gamma + 1));
  return chains;
}

}  // namespace

size_t ModelDrafter::outbox_bytes(const TreeRoom& tree, int max_seqs) {
  constexpr int kUnread = DraftSequences::kMaxUnread;
  const auto seqs = static_cast<size_t>(max_seqs);
  return kv::DeviceStep::outbox_bytes(max_seqs, max_seqs * (tree.inner + kUnread)) +
         Outbox::aligned(seqs * kUnread * sizeof(int32_t)) +
         Outbox::aligned(seqs * sizeof(int32_t));
}

ModelDrafter::ModelDrafter(Reader draft, Reader target, std::vector<TokenTree> shapes)
    : draft_(draft),
      is_self_(draft.engine == target.engine),
      vocab_(target.engine->config().vocab_size),
      shapes_(std::move(shapes)),
      sequences_(draft, target, largest().levels() > 1) {}

ModelDrafter::ModelDrafter(Reader draft, Reader target, TokenTree tree)
    : ModelDrafter(draft, target, std::vector{std::move(tree)}) {}

ModelDrafter::ModelDrafter(Reader draft, Reader target, GammaChooser chooser)
    : ModelDrafter(draft, target, chains_of(chooser.gammas())) {
  chooser_ = std::move(chooser);
}

ModelDrafter::ModelDrafter(Reader draft, Reader target, const Beams& beams)
    : ModelDrafter(draft, target, beam_tree(beams.width, beams.gamma)) {
  beams_ = beams;
}

const TokenTree& ModelDrafter::shape(std::span<const decode::DrawSeq> seqs) {
  if (!chooser_) return largest();
  const auto& gammas = chooser_->gammas();
  return shapes_[static_cast<size_t>(std::ranges::find(gammas, chooser_->choose(slots_of(seqs))) -
                                     gammas.begin())];
}

std::string ModelDrafter::name() const { return is_self_ ? "self" : draft_.engine->files().name; }

int ModelDrafter::max_places() const {
  const RoundNeeds one = draft_needs(TreeRoom::of(largest()), 1);
  return std::min(draft_.engine->room_for_places(one.rows, one.logit_rows),
                  draft_.engine->spec().max_seqs);
}

void ModelDrafter::prepare(Round& round) {
  const std::span<const decode::DrawSeq> seqs = round.seqs();
  steps_ = {};
  Flight& flight = flights_.emplace_back(Flight{.seqs = slots_of(seqs)});
  has_drafted_ = round.tree().levels() > 1;
  if (!has_drafted_) return;
  const auto places = static_cast<size_t>(round.places());
  kv_bytes_before_ = draft_.kv_bytes();
  if (sequences_.read(seqs)) {
    // Text that plain rounds went past: no part of this round's time.
    if (draft_.engine->queue() != nullptr) draft_.engine->queue()->wait();
    since_last_ = {};
  }
  steps_ = sequences_.begin(round);
  flight.n_levels_run = round.turns() * n_levels_run();
  // On a GPU known now, of one turn.
  flight.kv_bytes = round.turns() * (draft_.kv_bytes() - kv_bytes_before_);
  round.follow(steps_);
  const int n_first = steps_.front().arrays.n_rows;
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
  round.follow(unread_, n_first / round.places(), vocab);
  for (int level = 0; level < n_levels_run(); ++level)
    draft_.engine->choose_products(steps_[static_cast<size_t>(level)].arrays.n_rows,
                                   round.level_logits(level).rows());
}

void ModelDrafter::draft(Round& round) {
  model::Transformer& model = draft_.engine->model();
  const int vocab = draft_.engine->config().vocab_size;
  for (int level = 0; level < n_levels_run(); ++level) {
    const bool is_first = level == 0;
    model.forward_ids(is_first ? unread_.device : round.level_ids(level, vocab),
                      steps_[static_cast<size_t>(level)], draft_.engine->cache());
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
    if (beams_)
      round.grow_beams(level, beams_->temperature);
    else
      round.draw_children(level);
  }
  const bool on_gpu = draft_.engine->queue() != nullptr;
  if (!on_gpu) flights_.back().kv_bytes = draft_.kv_bytes() - kv_bytes_before_;
  // Work that is being recorded makes rounds under way end late.
  const bool is_recorded = on_gpu && is_recordable();
  for (Flight& flight : flights_) flight.is_timed = flight.is_timed && !is_recorded;
}

void ModelDrafter::keep(Round& round) {
  if (!steps_.empty()) sequences_.keep(round.paths(sequences_.nodes_run()));
}

void ModelDrafter::accept(const RoundResults& results, const std::vector<bool>& gone) {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  if (chooser_) observe(flight, results, gone);
  if (flight.n_levels_run == 0) return;
  std::vector<std::span<const int32_t>> paths;
  for (size_t b = 0; b < results.n_seqs(); ++b) paths.push_back(results.path(b));
  sequences_.accept(paths, gone);
  count(flight);
}

void ModelDrafter::accept_chains(std::span<const int> accepted, const std::vector<bool>& gone) {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  sequences_.accept_chains(accepted, gone);
  count(flight);
}

void ModelDrafter::count(const Flight& flight) {
  bytes_read_ +=
      flight.n_levels_run * draft_.engine->weight_bytes(draft_.reading) + flight.kv_bytes;
}

void ModelDrafter::observe(const Flight& flight, const RoundResults& results,
                           const std::vector<bool>& gone) {
  std::vector<GammaChooser::Tested> tested;
  for (size_t b = 0; b < results.n_seqs(); ++b) {
    if (gone[b]) continue;
    const int accepted = static_cast<int>(results.path(b).size());
    tested.push_back({flight.seqs[b], std::min(accepted + 1, results.n_drafted(b)), accepted});
  }
  const bool is_timed = is_steady_ && flight.is_timed;
  double seconds = is_timed ? since_last_.seconds() : 0;
  if (Comm* const comm = draft_.engine->exec().comm) seconds = comm->of_rank0(seconds);
  chooser_->observe(results.tree().levels() - 1, results.n_seqs(), seconds, tested);
  since_last_ = {};
  is_steady_ = true;
}

}  // namespace tandem::speculate
