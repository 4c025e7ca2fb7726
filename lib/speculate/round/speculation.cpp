#include "speculate/round/speculation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "speculate/round/simulated_acceptance.h"

namespace tandem::speculate {

using decode::Drawn;
using decode::DrawSeq;

Speculation::Speculation(Reader target, std::unique_ptr<Drafter> drafter,
                         const Round::Bounds& bounds, std::unique_ptr<Arena> arena,
                         RoundOptions options)
    : target_(*target.engine),
      arena_(std::move(arena)),
      exec_(target_.exec()),
      drafter_(std::move(drafter)),
      options_(std::move(options)),
      verifier_(target, {rule_for(options_.verify, drafter_->draws_children(), drafter_->largest(),
                                  is_light(target_)),
                         options_.floor}),
      round_(bounds, *arena_, exec_),
      stats_(drafter_->name(), std::string(rule_name(verifier_.rule())), drafter_->room()) {
  stats_.lossy = is_lossy(verifier_.rule());
  drafter_->join(round_);
}

Speculation::~Speculation() { abandon(); }

kv::Readers Speculation::readers() const {
  kv::Readers readers = verifier_.reader().reading.keys;
  for (const kv::Reading& drafts : drafter_->readings()) readers.add(drafts.keys);
  return readers;
}

void Speculation::abandon() noexcept {
  const bool is_flying = !flights_.empty();
  flights_.clear();
  drafter_->abandon();
  if (!is_flying || !exec_.on_gpu()) return;
  try {
    exec_.queue->wait();
  } catch (const Error&) {
    // The memory that the round works on may go all the same: the GPU has stopped.
  }
}

void Speculation::start(const decode::SamplerSpec& spec) {
  check_sampler(spec);
  if (drafter_->beams() > 0 && spec.rule.temperature > 0)
    throw recipe_error("sampling.temperature", "is {}, but beam drafts need temperature 0",
                       spec.rule.temperature)
        .hint("choose sampling.temperature=0, or spec.width=1 for sampled linear drafts");
  abandon();  // rounds of a run that was interrupted
  round_.restart();
  tokens_a_round_ = 1;
  if (!sampler_.is_equal_but_for_seed(spec)) graphs_.clear();
  sampler_ = spec;
  target_.sampler().start(spec);
}

int Speculation::depth() const {
  const bool by_tokens = sampler_.rule.needs_seen() || options_.on_verified;
  // Tokens of a draw do not stay on the device.
  const bool has_drawn =
      std::ranges::any_of(flights_, [](const Flight& f) { return !f.is_round(); });
  const bool may_change = std::ranges::any_of(flights_, &Flight::may_change);
  // A CPU that attends rows in the midst of a forward needs their positions, and does nothing else
  // meanwhile.
  // Forwards that no graph records keep the host busy until the last of them has begun: it would
  // learn how the round before ended when this one has drafted, and the last one would be in vain.
  const bool launches_long = exec_.on_gpu() && !drafter_->is_recordable();
  const bool waits = by_tokens || has_drawn || may_change || launches_long ||
                     !drafter_->may_be_ahead() || target_.cache().serves_steps();
  return round_.may_be_ahead() && !waits ? 2 : 1;
}

void Speculation::draw(std::span<const DrawSeq> seqs, const Tensor& logits) {
  target_.sampler().draw(seqs, logits);
  Flight& flight = flights_.emplace_back();
  for (Drawn& drawn : target_.sampler().collect())
    flight.drawn.emplace_back().push_back(std::move(drawn));
  drafter_->read(seqs);
  // Else the rest of a draft's prefill would count as part of the first round.
  if (exec_.on_gpu()) exec_.queue->wait();
}

void Speculation::forget(int slot) {
  drafter_->forget(slot);
  for (Flight& flight : flights_)
    for (size_t b = 0; b < flight.slots.size(); ++b)
      if (flight.slots[b] == slot) flight.gone[b] = true;
}

std::vector<int> Speculation::prior(std::span<const DrawSeq> seqs) const {
  if (flights_.empty() || !flights_.back().is_round()) return {};
  const Flight& last = flights_.back();
  std::vector<int> places;
  for (const DrawSeq& s : seqs) {
    const auto at = std::ranges::find(last.slots, s.slot) - last.slots.begin();
    const bool is_there = at < std::ssize(last.slots) && !last.gone[static_cast<size_t>(at)];
    places.push_back(is_there ? static_cast<int>(at) : -1);
  }
  return places;
}

void Speculation::step(std::span<const DrawSeq> seqs) {
  TANDEM_CHECK(in_flight() < depth(), "{} steps are in flight already", in_flight());
  const Stopwatch watch;
  const TokenTree& tree = drafter_->shape(seqs);
  const int n = static_cast<int>(seqs.size()), nodes = tree.size();
  const int most = std::min(
      {target_.room_for_places(nodes, 1), drafter_->max_places(), target_.spec().max_seqs});
  round_.begin(seqs, prior(seqs), sampler_, tree,
               exec_.on_gpu() ? std::max(n, kv::places_for(n, nodes, most)) : n);
  for (size_t b = 0; options_.simulate && b < seqs.size(); ++b)
    round_.force(b, simulated_path(tree, *options_.simulate,
                                   {sampler_.seed, seqs[b].seq, seqs[b].position}));
  drafter_->prepare(round_);
  const double kv_before = verifier_.reader().kv_bytes();
  Flight flight;
  flight.may_change = limit_round();
  flight.gone.resize(seqs.size());
  for (const DrawSeq& s : seqs) {
    flight.seqs.push_back(s.seq);
    flight.slots.push_back(s.slot);
  }
  if (exec_.on_gpu()) flight.done = std::make_unique<cuda::Event>();
  flight.results = round_.results();
  flights_.push_back(std::move(flight));  // in part, if launching fails
  verifier_.lay_out(round_, flights_.back().slots);
  launch(true);
  if (exec_.on_gpu()) flights_.back().done->record(*exec_.queue);
  bytes_read_ +=
      static_cast<double>(target_.weight_bytes()) + verifier_.reader().kv_bytes() - kv_before;
  if (exec_.on_gpu()) stats_.host_s += watch.seconds();
}

double Speculation::time_plain_step(std::span<const DrawSeq> seqs) {
  TANDEM_CHECK(flights_.empty(), "{} steps are in flight already", in_flight());
  drafter_->pause();
  round_.begin(seqs, {}, sampler_, plain_, target_.places(static_cast<int>(seqs.size()), 1));
  std::vector<int32_t> slots;
  for (const DrawSeq& s : seqs) slots.push_back(s.slot);
  verifier_.lay_out(round_, slots, true);
  launch(false);
  if (exec_.on_gpu()) exec_.queue->wait();
  const double seconds = round_.results().seconds(RoundResults::begun, RoundResults::verified);
  return exec_.comm != nullptr ? exec_.comm->of_rank0(seconds) : seconds;
}

bool Speculation::limit_round() {
  // Simulated paths are no choice of the target.
  if (options_.simulate) return false;
  const int deepest = round_.tree().levels() - 1;
  bool may_change = false;
  for (size_t b = 0; b < round_.seqs().size(); ++b) {
    const int slot = round_.seqs()[b].slot;
    const int length = target_.cache().length(slot) + round_.most_pending();
    // The root is kept in any case.
    const int room = target_.cache().next_change(slot, verifier_.reader().reading) - length - 1;
    if (room > deepest) continue;
    may_change = true;
    round_.limit(b, std::max(room, 0));
  }
  return may_change;
}

void Speculation::launch(bool drafts) {
  struct Piece {
    bool is_recordable;
    std::function<void()> work;
  };
  const auto draft = [&] {
    round_.send();
    round_.mark(Round::begun);
    if (drafts) drafter_->draft(round_);
    round_.mark(Round::drafted);
  };
  const auto score = [&] { verifier_.score(round_); };
  const auto finish = [&] {
    round_.mark(Round::scored);
    verifier_.verify(round_);
    if (drafts) drafter_->keep(round_);
    round_.mark(Round::verified);
    round_.fetch();
  };
  const std::array<Piece, 3> pieces = {
      Piece{!drafts || drafter_->is_recordable(), draft},
      // A graph ends with all its work, copies of weights for
      // the next round too: those go on meanwhile.
      Piece{target_.is_recordable(verifier_.reader().reading), score}, Piece{true, finish}};
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
    constexpr size_t kScore = 1;
    if (first <= kScore && kScore < end && target_.cache().serves_steps())
      target_.cache().serve({&verifier_.step(), 1});
  }
}

std::vector<std::vector<Drawn>> Speculation::collect() {
  TANDEM_CHECK(!flights_.empty(), "no step is in flight");
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  return flight.is_round() ? finish_round(flight) : std::move(flight.drawn);
}

std::vector<std::vector<Drawn>> Speculation::finish_round(const Flight& flight) {
  if (flight.done) flight.done->wait();
  const Stopwatch watch;
  const RoundResults& results = flight.results;
  stats_.draft_s += results.seconds(RoundResults::begun, RoundResults::drafted);
  stats_.target_s += results.seconds(RoundResults::drafted, RoundResults::scored);
  stats_.verify_s += results.seconds(RoundResults::scored, RoundResults::verified);
  std::vector<std::vector<Drawn>> drawn(flight.seqs.size());
  std::vector<int32_t> slots;
  std::vector<int> kept;
  for (size_t b = 0; b < flight.seqs.size(); ++b) {
    if (flight.gone[b]) continue;
    drawn[b] = results.drawn(b);
    slots.push_back(flight.slots[b]);
    kept.push_back(static_cast<int>(drawn[b].size()));
    tokens_a_round_ += (kept.back() - tokens_a_round_) / 32;
    const int drafted = results.n_drafted(b);
    const int offered = std::min(drafted, results.tree().levels() - 1);
    const int accepted = kept.back() - 1;
    const int refused = drafter_->beams() > 0
                            ? static_cast<int>(accepted < offered)
                            : refused_children(results.tree(), results.path(b), drafted);
    const RoundEvent event{flight.seqs[b], drafted, accepted, offered, refused, results.path(b)};
    stats_.add(event);
    if (options_.on_round) options_.on_round(event);
    target_.cache().report_round(flight.slots[b], event.accepted, offered);
  }
  if (options_.on_verified) {
    const int64_t n_rows = int64_t{round_.places()} * round_.tree().size();
    const Tensor logits = verifier_.logits(round_, 0);
    TANDEM_CHECK(logits.rows() == n_rows, "expected {} rows of logits, found {}", n_rows,
                 logits.rows());
    options_.on_verified(round_, logits);
  }
  target_.cache().keep(slots, kept);
  drafter_->accept(results, flight.gone);
  if (exec_.on_gpu()) stats_.host_s += watch.seconds();
  return drawn;
}

}  // namespace tandem::speculate
