#include "speculate/draft/choosing_drafter.h"

#include <algorithm>

namespace tandem::speculate {
namespace {

/// Acceptance assumed beforehand weighs as this number of tested tokens.
constexpr double kAssumed = 16;
/// A round on, of what rounds before it tested.
constexpr double kMemory = 0.98;
/// Tested tokens before which acceptance counts as not known, and the share of the best kind's
/// speed below which finding out costs more than it may bring.
constexpr double kKnown = 12, kLeastSpeed = 0.5;

/// Rounds accept chains at `alpha`; of trees every child of the vector in proportion.
Proposals at_alpha(const Proposals& p, double alpha) {
  Proposals scaled = p;
  if (p.trees.empty()) return scaled;
  const double first = p.acceptance.rows.front().front();
  for (auto& row : scaled.acceptance.rows)
    for (double& chance : row) chance = std::min(1.0, chance * alpha / first);
  return scaled;
}

}  // namespace

void ChoosingDrafter::Running::add(double more_accepted, double more_tested) {
  accepted = kMemory * accepted + more_accepted;
  tested = kMemory * tested + more_tested;
  seen += more_tested;
}

ChoosingDrafter::ChoosingDrafter(Drafters drafters, Outlook outlook)
    : drafters_(std::move(drafters)),
      outlook_(std::move(outlook)),
      within_{kAssumed * outlook_.alpha1, kAssumed},
      around_{kAssumed * outlook_.alpha2, kAssumed},
      root_(chain_tree(1)),
      largest_(root_) {
  for_all([&](Drafter& d) {
    const auto rank = [](const TokenTree& t) {
      return std::pair(std::ranges::max(t.n_children) > 1, t.size());
    };
    if (rank(d.largest()) > rank(largest_)) largest_ = d.largest();
  });
  choose();
}

Drafter* ChoosingDrafter::drafter_of(RoundKind kind) const {
  switch (kind) {
    case RoundKind::plain:
      break;
    case RoundKind::small:
      return drafters_.small.get();
    case RoundKind::retrieval:
      return drafters_.retrieval.get();
    case RoundKind::nested:
      return drafters_.nested.get();
  }
  return nullptr;
}

template <class Work>
void ChoosingDrafter::for_all(const Work& work) const {
  for (const RoundKind kind : {RoundKind::small, RoundKind::retrieval, RoundKind::nested})
    if (Drafter* const d = drafter_of(kind)) work(*d);
}

RoundChoices ChoosingDrafter::choices() const {
  NestedOptions options = outlook_.options;
  options.small = at_alpha(options.small, alpha1());
  options.inside = at_alpha(options.inside, alpha1());
  options.retrieval = at_alpha(options.retrieval, alpha2());
  return choose_rounds(outlook_.cost, options);
}

void ChoosingDrafter::choose() {
  const RoundChoices all = choices();
  next_ = all.best().kind;
  // Acceptance that is only assumed is found out by the fastest kind that tests it.
  const auto find_out = [&](const Running& of, RoundKind alone) {
    if (of.seen >= kKnown) return;
    double most = kLeastSpeed * all.best().speedup;
    for (const RoundKind kind : {alone, RoundKind::nested})
      if (const auto& c = all.of(kind); c && drafter_of(kind) && c->speedup > most)
        next_ = kind, most = c->speedup;
  };
  find_out(around_, RoundKind::retrieval);
  find_out(within_, RoundKind::small);
}

TreeRoom ChoosingDrafter::room() const {
  TreeRoom all;
  for_all([&](const Drafter& d) { all = all.with(d.room()); });
  return all;
}

std::vector<kv::Reading> ChoosingDrafter::readings() const {
  std::vector<kv::Reading> all;
  for_all([&](const Drafter& d) {
    for (const kv::Reading& r : d.readings())
      if (std::ranges::find(all, r) == all.end()) all.push_back(r);
  });
  return all;
}

size_t ChoosingDrafter::outbox_bytes(int max_seqs) const {
  size_t most = 0;
  for_all([&](const Drafter& d) { most = std::max(most, d.outbox_bytes(max_seqs)); });
  return most;
}

int ChoosingDrafter::max_places() const {
  int least = Drafter::max_places();
  for_all([&](const Drafter& d) { least = std::min(least, d.max_places()); });
  return least;
}

int ChoosingDrafter::rounds_within() const {
  return drafters_.nested ? drafters_.nested->rounds_within() : 0;
}

void ChoosingDrafter::share(std::span<const int32_t> prefix) {
  for_all([&](Drafter& d) { d.share(prefix); });
}

void ChoosingDrafter::forget(int slot) {
  for_all([&](Drafter& d) { d.forget(slot); });
}

void ChoosingDrafter::join(Round& round) {
  for_all([&](Drafter& d) { d.join(round); });
}

void ChoosingDrafter::abandon() {
  flights_.clear();
  for_all([](Drafter& d) { d.abandon(); });
}

const TokenTree& ChoosingDrafter::shape(std::span<const decode::DrawSeq> seqs) {
  drawn_ = next_;
  Drafter* const d = drafter_of(drawn_);
  return d == nullptr ? root_ : d->shape(seqs);
}

void ChoosingDrafter::prepare(Round& round) {
  flights_.push_back(drawn_);
  ++rounds_by_kind_[static_cast<size_t>(drawn_)];
  if (Drafter* const d = drafter_of(drawn_)) d->prepare(round);
}

void ChoosingDrafter::draft(Round& round) {
  if (Drafter* const d = drafter_of(drawn_)) d->draft(round);
}

void ChoosingDrafter::keep(Round& round) {
  if (Drafter* const d = drafter_of(drawn_)) d->keep(round);
}

bool ChoosingDrafter::is_recordable() const {
  const Drafter* const d = drafter_of(drawn_);
  return d == nullptr || d->is_recordable();
}

bool ChoosingDrafter::may_be_ahead() const {
  // One that is to take over has to know the whole text.
  if (next_ != drawn_) return false;
  const Drafter* const d = drafter_of(next_);
  return d == nullptr || d->may_be_ahead();
}

void ChoosingDrafter::accept(const RoundResults& results, const std::vector<bool>& gone) {
  const RoundKind kind = flights_.front();
  flights_.pop_front();
  if (Drafter* const d = drafter_of(kind)) d->accept(results, gone);
  double accepted = 0, tested = 0;
  for (size_t b = 0; b < results.n_seqs(); ++b) {
    const auto n = static_cast<double>(results.path(b).size());
    const int offered = std::min(results.n_drafted(b), results.tree().levels() - 1);
    accepted += n;
    tested += std::min(n + 1, static_cast<double>(offered));
  }
  if (kind == RoundKind::small) within_.add(accepted, tested);
  if (kind == RoundKind::retrieval || kind == RoundKind::nested) around_.add(accepted, tested);
  if (kind == RoundKind::nested) {
    const auto& chances = outlook_.options.inside.trees.front();
    double inside = 0, rounds = 0;
    for (int turn = 0; turn < results.n_within(); ++turn)
      for (size_t b = 0; b < results.n_seqs(); ++b)
        if (const int n = results.accepted_within(turn, b); n >= 0) {
          inside += n;
          rounds += std::min(n + 1, chances.levels() - 1);
        }
    within_.add(inside, rounds);
  }
  choose();
}

double ChoosingDrafter::bytes_read() const {
  double sum = 0;
  for_all([&](const Drafter& d) { sum += d.bytes_read(); });
  return sum;
}

const RoundStats* ChoosingDrafter::stats_within() const {
  return drafters_.nested ? drafters_.nested->stats_within() : nullptr;
}

}  // namespace tandem::speculate
