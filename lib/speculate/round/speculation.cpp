#include "speculate/round/speculation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "speculate/round/simulated_acceptance.h"

namespace tandem::speculate {

using decode::Drawn;
using decode::DrawSeq;

Speculation::Speculation(Reader target, std::unique_ptr<Drafter> drafter,
                         const Round::Bounds& bounds, std::unique_ptr<Arena> arena,
                         RoundOptions options)
    : target_(*target.engine),
      reader_(target),
      arena_(std::move(arena)),
      exec_(target_.exec()),
      drafter_(std::move(drafter)),
      options_(std::move(options)),
      rule_(rule_for(options_.verify, drafter_->draws_children(), drafter_->largest(),
                     exec_.on_gpu() && static_cast<double>(target_.weight_bytes()) < kLightTarget)),
      round_(bounds, *arena_, exec_),
      stats_(drafter_->name(), std::string(rule_name(rule_)), drafter_->largest()) {}

Speculation::~Speculation() { abandon(); }

kv::Readers Speculation::readers() const {
  kv::Readers readers = reader_.reading.keys;
  if (const auto drafts = drafter_->reading()) readers.add(drafts->keys);
  return readers;
}

void Speculation::abandon() noexcept {
  if (!std::exchange(is_flying_, false) || !exec_.on_gpu()) return;
  try {
    exec_.queue->wait();
  } catch (const Error&) {
    // The memory that the round works on may go all the same: the GPU has stopped.
  }
}

void Speculation::start(const decode::SamplerSpec& spec) {
  check_sampler(spec);
  abandon();  // a round whose run was interrupted
  if (!sampler_.is_equal_but_for_seed(spec)) graphs_.clear();
  sampler_ = spec;
  target_.sampler().start(spec);
  ready_.clear();
}

void Speculation::draw(std::span<const DrawSeq> seqs, const Tensor& logits) {
  target_.sampler().draw(seqs, logits);
  for (Drawn& drawn : target_.sampler().collect())
    ready_.emplace_back().push_back(std::move(drawn));
  drafter_->read(seqs);
  // Else the rest of a draft's prefill would count as part of the first round.
  if (exec_.on_gpu()) exec_.queue->wait();
}

void Speculation::step(std::span<const DrawSeq> seqs) {
  TANDEM_CHECK(!is_flying_, "a round is in flight");
  const Stopwatch watch;
  const TokenTree& tree = drafter_->shape(seqs);
  const int n = static_cast<int>(seqs.size()), nodes = tree.size();
  const int most = std::min(
      {target_.room_for_places(nodes, nodes), drafter_->max_places(), target_.spec().max_seqs});
  round_.begin(seqs, sampler_, tree,
               exec_.on_gpu() ? std::max(n, kv::places_for(n, nodes, most)) : n);
  for (size_t b = 0; options_.simulate && b < seqs.size(); ++b)
    round_.force(b, simulated_path(tree, *options_.simulate,
                                   {sampler_.seed, seqs[b].seq, seqs[b].position}));
  drafter_->prepare(round_);
  const double kv_before = reader_.kv_bytes();
  lay_out_target();
  seqs_.clear();
  for (const DrawSeq& s : seqs) seqs_.push_back(s.seq);
  is_flying_ = true;  // in part, if launching fails
  launch();
  bytes_read_ += static_cast<double>(target_.weight_bytes()) + reader_.kv_bytes() - kv_before;
  if (exec_.on_gpu()) stats_.host_s += watch.seconds();
}

void Speculation::lay_out_target() {
  const TokenTree& tree = round_.tree();
  const int64_t n_rows = int64_t{round_.places()} * tree.size();
  target_.choose_products(n_rows, n_rows);
  slots_.clear();
  for (const DrawSeq& s : round_.seqs()) slots_.push_back(s.slot);
  const bool is_as_before =
      step_tree_ == &tree && step_.places == round_.places() && step_.slot.size() == slots_.size();
  if (is_as_before) return target_.cache().begin_again({&step_, 1}, slots_, &round_.outbox());
  std::vector<kv::SeqRows> rows;
  for (const int slot : slots_) rows.push_back({slot, tree.size(), false});
  const std::vector<kv::Tree> trees(slots_.size(), {tree.parent});
  step_ = target_.cache().begin({.rows = rows,
                                 .trees = trees,
                                 .reading = reader_.reading,
                                 .outbox = &round_.outbox(),
                                 .places = round_.places()});
  step_tree_ = &tree;
}

void Speculation::launch() {
  struct Piece {
    bool is_recordable;
    std::function<void()> work;
  };
  const auto draft = [&] {
    round_.send();
    round_.mark(Round::begun);
    drafter_->draft(round_);
    round_.mark(Round::drafted);
  };
  const auto score = [&] {
    target_.model().forward_ids(round_.tokens(), step_, target_.cache());
    target_.model().logits(target_.logit_rows().slice(0, step_.arrays.n_rows), nullptr);
  };
  const auto finish = [&] {
    round_.mark(Round::scored);
    round_.verify(target_.logit_rows(), rule_);
    target_.cache().move_paths(step_, round_.paths(round_.tree().size()));
    drafter_->keep(round_);
    round_.mark(Round::verified);
    round_.fetch();
  };
  const std::array<Piece, 3> pieces = {Piece{drafter_->is_recordable(), draft},
                                       // A graph ends with all its work, copies of weights for
                                       // the next round too: those go on meanwhile.
                                       Piece{target_.spec().n_streamed == 0, score},
                                       Piece{true, finish}};
  for (size_t first = 0, end = 0; first < pieces.size(); first = end) {
    for (end = first + 1;
         end < pieces.size() && pieces[first].is_recordable && pieces[end].is_recordable;)
      ++end;
    const auto work = [&] {
      for (size_t i = first; i < end; ++i) pieces[i].work();
    };
    if (!exec_.on_gpu() || !pieces[first].is_recordable) {
      work();
      continue;
    }
    std::unique_ptr<cuda::Graph>& graph = graphs_[{round_.places(), &round_.tree(), first}];
    if (!graph) graph = std::make_unique<cuda::Graph>(*exec_.queue, work);
    graph->launch(*exec_.queue);
  }
}

std::vector<std::vector<Drawn>> Speculation::collect() {
  if (is_flying_) finish_round();
  TANDEM_CHECK(!ready_.empty(), "nothing is in flight");
  return std::exchange(ready_, {});
}

void Speculation::finish_round() {
  is_flying_ = false;
  if (exec_.on_gpu()) exec_.queue->wait();
  const Stopwatch watch;
  stats_.draft_s += round_.seconds(Round::begun, Round::drafted);
  stats_.target_s += round_.seconds(Round::drafted, Round::scored);
  stats_.verify_s += round_.seconds(Round::scored, Round::verified);
  kept_.clear();
  for (size_t b = 0; b < seqs_.size(); ++b) {
    ready_.push_back(round_.drawn(b));
    kept_.push_back(static_cast<int>(ready_.back().size()));
    const RoundEvent event{seqs_[b], round_.n_drafted(b), kept_.back() - 1};
    stats_.add(event);
    if (options_.on_round) options_.on_round(event);
  }
  if (options_.on_verified) options_.on_verified(round_, target_.logit_rows());
  target_.cache().commit(step_, kept_);
  drafter_->accept(round_);
  if (exec_.on_gpu()) stats_.host_s += watch.seconds();
}

}  // namespace tandem::speculate
