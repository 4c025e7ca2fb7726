#include "speculate/round/round.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/sample/row_split.h"
#include "kernels/tree/traverse_trees.h"
#include "ops/transfers.h"
#include "ops/verification.h"

namespace tandem::speculate {
namespace {

/// Rounds under way: one that works, and one that is laid out meanwhile.
constexpr int kTurns = 2;

template <class T>
size_t room(size_t n) {
  return Outbox::aligned(n * sizeof(T));
}

size_t n_nodes(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.tree.nodes);
}
size_t n_parents(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.tree.parents);
}
size_t n_ids(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.tree.widest);
}

size_t n_beams(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.beams);
}
/// Scores, and on a GPU what grow_beams works with: not where kernels leave words zero for others.
size_t beam_bytes(const Round::Bounds& b, Device device) {
  const bool on_gpu = device.kind == Device::Kind::cuda;
  return n_beams(b) * sizeof(double) +
         (on_gpu ? grow_beams_memory_bytes(b.vocab, static_cast<int>(n_beams(b))) : 0);
}

size_t parcel_bytes(const Round::Bounds& b) {
  const auto seqs = static_cast<size_t>(b.max_seqs), levels = static_cast<size_t>(b.tree.levels);
  const auto turns = static_cast<size_t>(b.turns);
  size_t bytes = b.outbox_bytes + room<uint64_t>(1) + 3 * room<int32_t>(seqs) +
                 room<int32_t>(kNewestTokens * seqs) + 2 * room<int32_t>(seqs + 1) +
                 4 * room<int32_t>(n_nodes(b)) + room<StepRows>(std::max<size_t>(levels, 1)) +
                 turns * (room<int32_t>(n_nodes(b)) + room<int32_t>(seqs));  // simulated paths
  if (b.rounds_within > 0) bytes += 2 * room<int32_t>(seqs);
  if (b.draws_any())  // arrays of levels end in gaps
    bytes += 3 * room<int32_t>(n_nodes(b)) + room<int32_t>(n_parents(b)) +
             room<ParentRow>(n_parents(b)) + 2 * levels * Outbox::kAlignment;
  return bytes;
}

size_t result_bytes(const Round::Bounds& b) {
  const auto seqs = static_cast<size_t>(b.max_seqs), within = static_cast<size_t>(b.rounds_within);
  const size_t bytes = room<int32_t>(n_nodes(b)) + room<float>(n_nodes(b)) +
                       3 * room<int32_t>(seqs) + room<uint64_t>(Round::n_moments);
  return within == 0 ? bytes
                     : bytes + room<int32_t>(seqs) + 2 * room<int32_t>(within * seqs) +
                           room<uint64_t>(within * Round::n_moments);
}

Courier::Spec courier_spec(const Round::Bounds& b, Device device) {
  return {.name = b.name + "/round",
          .in_bytes = parcel_bytes(b),
          .out_bytes = result_bytes(b),
          .turns = kTurns,
          // Graphs find all rounds in one; the CPU has no other that the host could read.
          .own_places = device.kind == Device::Kind::cpu};
}
/// Of RoundEnds, its arrays one after the other.
size_t ends_bytes(const Round::Bounds& b) {
  return ((1 + kNewestTokens) * static_cast<size_t>(b.max_seqs) + 1) * sizeof(int32_t);
}
Courier::Spec seen_spec(const Round::Bounds& b) {
  const auto tokens = static_cast<size_t>(b.max_tokens) + static_cast<size_t>(b.chain_around);
  return {.name = b.name + "/seen",
          .in_bytes = room<int32_t>(static_cast<size_t>(b.max_seqs) * tokens)};
}

/// Of the kernels that work on rows of logits on a GPU: all parents of a level draw children, the
/// sequences are verified.
size_t row_bytes(const Round::Bounds& b, Device device) {
  if (device.kind != Device::Kind::cuda) return 0;
  return std::max(cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs * b.tree.widest, 1),
                  cuda::verify_memory_bytes(b.gpu, AcceptBy::traversal, b.vocab, b.max_seqs,
                                            static_cast<int>(n_nodes(b))));
}

}  // namespace

size_t Round::outbox_bytes_within(const Bounds& b) { return parcel_bytes(b); }

void Round::plan(const Bounds& b, Device device, MemoryPlan& plan) {
  const bool is_within = b.chain_around > 0;
  if (is_within)
    plan.add(b.name + "/results", result_bytes(b), device);
  else
    Courier::plan(courier_spec(b, device), device, plan);
  plan.add(b.name + "/ends", ends_bytes(b), device);
  Courier::plan(seen_spec(b), device, plan);
  if (b.draws_any()) {
    plan.add(b.name + "/ids", n_ids(b) * sizeof(int32_t), device);
    plan.add(b.name + "/draft logits", n_parents(b) * static_cast<size_t>(b.vocab) * sizeof(float),
             device);
  }
  if (b.beams > 0) plan.add(b.name + "/beams", beam_bytes(b, device), device);
  if (const size_t bytes = row_bytes(b, device); bytes > 0)
    plan.add(b.name + "/rows", bytes, device);
}

Round::Round(const Bounds& b, Arena& arena, const Exec& exec, Round* around)
    : bounds_(b), exec_(exec), around_(around), seen_courier_(seen_spec(b), arena, exec) {
  TANDEM_CHECK(is_within() == (b.chain_around > 0), "unexpected outer chain of {} nodes",
               b.chain_around);
  if (is_within())
    results_ = static_cast<std::byte*>(arena.take(b.name + "/results"));
  else
    courier_.emplace(courier_spec(b, exec.device()), arena, exec);
  auto* const ends = static_cast<int32_t*>(arena.take(b.name + "/ends"));
  ends_ = {.kept = ends,
           .newest = ends + b.max_seqs,
           .turn = is_within() ? nullptr : ends + (1 + kNewestTokens) * b.max_seqs};
  restart();
  if (b.draws_any()) {
    ids_ = static_cast<int32_t*>(arena.take(b.name + "/ids"));
    draft_logits_ = {arena.take(b.name + "/draft logits"),
                     DType::f32,
                     {static_cast<int64_t>(n_parents(b)), b.vocab},
                     exec.device()};
    // Of children that this draws: those of chains that grow were drawn within.
    if (!exec.on_gpu() && b.rounds_within == 0) draft_sums_.resize(n_parents(b));
  }
  if (b.beams > 0) beam_scores_ = static_cast<double*>(arena.take(b.name + "/beams"));
  if (row_bytes(b, exec.device()) > 0) rows_ = arena.take(b.name + "/rows");
}

void Round::restart() {
  if (is_within()) return;
  courier_->restart();
  constexpr int32_t kFirstTurn = 0;
  if (exec_.on_gpu())
    exec_.queue->copy_in(ends_.turn, &kFirstTurn, sizeof kFirstTurn);
  else
    *ends_.turn = kFirstTurn;
}

void Round::take_results(Outbox::Part at) {
  const std::byte* const begin = at.host;
  const auto take = [&]<class T>(Mirrored<T>& array, size_t n) {
    array = {reinterpret_cast<T*>(at.host), reinterpret_cast<T*>(at.device)};
    at = {at.host + room<T>(n), at.device + room<T>(n)};
  };
  const auto n = static_cast<size_t>(places_), nodes = n * static_cast<size_t>(tree_->size());
  const auto within = static_cast<size_t>(bounds_.rounds_within);
  take(path_, nodes);
  take(n_accepted_, n);
  take(bonus_, n);
  take(logprobs_, nodes);
  take(n_rounded_, n);
  take(clock_, n_moments);
  if (within > 0) {
    take(length_, n);
    take(taken_, within * n);
    take(found_, within * n);
    take(clocks_, within * n_moments);
  }
  fetched_bytes_ = room<int32_t>(nodes) + static_cast<size_t>(at.host - begin);
}

RoundNumbers Round::numbers() const {
  if (!is_within()) return {seed_.device, sequence_.device, position_.device};
  RoundNumbers n = around_->numbers();
  n.stage = static_cast<uint32_t>(turn_) + 1;
  return n;
}

void Round::send() {
  const Outbox::Part all = outbox_->all();
  if (exec_.on_gpu())
    ops::host_copy({.to = all.device,
                    .from = courier_->in_first_turn(all.host),
                    .bytes = outbox_->taken(),
                    .turn = ends_.turn,
                    .from_step = static_cast<ptrdiff_t>(courier_->turn_step())},
                   exec_.stream());
  catch_up(ends_, prior_.device);
}

void Round::catch_up(const RoundEnds& ends, const int32_t* prior) {
  ops::catch_up({.ends = ends,
                 .prior = prior,
                 .tokens = tokens_.device,
                 .newest = newest_.device,
                 .position = position_.device,
                 .unread = unread_.device,
                 .steps = steps_.device,
                 .n_seqs = places_,
                 .n_nodes = tree_->size(),
                 .n_unread = n_unread_,
                 .n_known_ids = unread_limit_,
                 .n_steps = n_steps_},
                exec_.stream());
}

void Round::mark(Moment moment) { ops::read_clock(clock_.device + moment, exec_.stream()); }

const int32_t* Round::level_ids(int level, int limit) {
  const Level& l = levels_[static_cast<size_t>(level)];
  ops::load_slot_ids(
      {.last = tokens_.device, .slot = l.token, .ids = ids_, .n = l.n_nodes, .limit = limit},
      exec_.stream());
  return ids_;
}

Tensor Round::level_logits(int level) const {
  const Level& l = levels_[static_cast<size_t>(level)];
  return draft_logits_.slice(l.first_logits, l.n_parents);
}

void Round::draw_children(int level) {
  const Level& l = levels_[static_cast<size_t>(level)];
  ops::draw_children({.tokens = tokens_.device,
                      .logits = level_logits(level).as<float>(),
                      .parents = l.parent,
                      .numbers = numbers(),
                      .n_rows = l.n_parents,
                      .vocab = bounds_.vocab,
                      .rule = sampler_.rule.kept(),
                      .seen = penalized(),
                      .seen_begin = seen_begin_.device,
                      .parent = parent_.device,
                      .node_begin = node_begin_.device,
                      .workspace = rows_,
                      .sums = draft_sums_.empty() ? nullptr : draft_sums_.data() + l.first_logits},
                     exec_.stream());
  if (exec_.on_gpu()) return;  // verification finds rows without meaning
  for (int p = 0; p < l.n_parents; ++p)
    ops::check_valid(
        {tokens_.host + l.parent[p].first_child, static_cast<size_t>(l.parent[p].n_children)});
}

VerifyTreesParams Round::verification(const Tensor& logits, const AcceptRule& rule,
                                      int first) const {
  const bool by_residual = weighs_draws(rule.by);
  const int nodes = tree_->size(), at = first * nodes;
  RoundNumbers named = numbers();
  named.sequence += first;
  named.position += first;
  // Trees are of one shape: nodes and rows of the logits count on from the group's first place as
  // they do from the round's.
  return {.path = path_.device + at,
          .n_accepted = n_accepted_.device + first,
          .bonus = bonus_.device + first,
          .logprobs = logprobs_.device + at,
          .n_rounded = n_rounded_.device + first,
          .node_begin = node_begin_.device,
          .tokens = tokens_.device + at,
          .first_child = first_child_.device + at,
          .n_children = n_children_.device + at,
          .target_row = row_.device,
          .draft_row = by_residual ? draft_row_.device + at : nullptr,
          .target_logits = logits.as<float>(),
          .draft_logits = by_residual ? draft_logits_.as<float>() : nullptr,
          .seen = penalized(),
          .seen_begin = seen_begin_.device + first,
          .numbers = named,
          .n_seqs = static_cast<int>(logits.rows()) / nodes,
          .vocab = bounds_.vocab,
          .target = sampler_.rule.kept(),
          .draft = sampler_.rule.kept(),
          .accept_by = rule.by,
          .floor = rule.floor,
          .workspace = rows_,
          .draft_sums = by_residual && !draft_sums_.empty() ? draft_sums_.data() : nullptr};
}

void Round::verify(const Tensor& logits, const AcceptRule& rule, int first) {
  // A lone root is drawn from the target by every rule; this one needs least for that.
  const AcceptRule by = tree_->size() == 1 ? AcceptBy::match : rule;
  ops::verify_trees(verification(logits, by, first), exec_.stream());
}

size_t Round::n_forced() const {
  const auto n = static_cast<size_t>(places_), nodes = n * static_cast<size_t>(tree_->size());
  return (room<int32_t>(nodes) + room<int32_t>(n)) / sizeof(int32_t);
}

int32_t* Round::forced_counts(int32_t* paths) const {
  const auto nodes = static_cast<size_t>(places_) * static_cast<size_t>(tree_->size());
  return paths + room<int32_t>(nodes) / sizeof(int32_t);
}

void Round::impose() {
  if (!is_forced_) return;
  ops::host_copy({.to = path_.device,
                  .from = forced_.device + static_cast<size_t>(turn_) * n_forced(),
                  .bytes = n_forced() * sizeof(int32_t)},
                 exec_.stream());
}

kv::PagedStore::AcceptedPaths Round::paths(int n_held) const {
  return {.path = path_.device,
          .n_accepted = n_accepted_.device,
          .position = position_.device,
          .n_seqs = places_,
          .n_nodes = tree_->size(),
          .n_nodes_held = n_held,
          .max_depth = tree_->levels() - 1};
}

void Round::fetch() {
  if (exec_.on_gpu())
    ops::host_copy({.to = courier_->in_first_turn(tokens_.host),
                    .from = tokens_.device,
                    .bytes = fetched_bytes_,
                    .turn = ends_.turn,
                    .to_step = static_cast<ptrdiff_t>(courier_->turn_step())},
                   exec_.stream());
  ops::leave_ends({.ends = ends_,
                   .newest = newest_.device,
                   .tokens = tokens_.device,
                   .path = path_.device,
                   .n_accepted = n_accepted_.device,
                   .bonus = bonus_.device,
                   .n_seqs = places_,
                   .n_nodes = tree_->size()},
                  exec_.stream());
}

RoundResults Round::results() const {
  return {*tree_,
          n_drafted_,
          {.tokens = tokens_.host,
           .path = path_.host,
           .n_accepted = n_accepted_.host,
           .bonus = bonus_.host,
           .logprobs = is_forced_ ? nullptr : logprobs_.host,
           .clock = clock_.host,
           .places = places_,
           .n_within = grows_ ? bounds_.rounds_within : 0,
           .length = length_.host,
           .taken = taken_.host,
           .found = found_.host,
           .clocks = clocks_.host}};
}

}  // namespace tandem::speculate
