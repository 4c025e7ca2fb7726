#include "speculate/draft/nested_drafter.h"

#include <algorithm>

#include "base/check.h"
#include "speculate/round/simulated_acceptance.h"

namespace tandem::speculate {

NestedDrafter::NestedDrafter(Reader middle, std::unique_ptr<Drafter> within, NestedShape shape,
                             WithinOptions options)
    : within_(std::move(within)),
      shape_(shape),
      options_(std::move(options)),
      verifier_(middle, rule_for(options_.verify, within_->draws_children(), within_->largest(),
                                 is_light(*middle.engine))),
      chain_(chain_tree(1 + shape.most(within_->largest().levels()))),
      root_(chain_tree(1)),
      stats_(within_->name(), std::string(rule_name(verifier_.rule())), within_->room()) {
  TANDEM_CHECK(!is_lossy(options_.verify),
               "inner steps do not support the lossy acceptance rule {}",
               rule_name(verifier_.rule()));
  TANDEM_CHECK(shape.rounds >= 1 && shape.rounds < static_cast<int>(kMaxStages) &&
                   shape.enough >= 1 && within_->rounds_within() == 0,
               "unexpected limits of inner steps: {} steps, {} tokens, {} nested steps",
               shape.rounds, shape.enough, within_->rounds_within());
}

NestedDrafter::~NestedDrafter() = default;

Round::Bounds NestedDrafter::bounds(const Within& within, const NestedShape& shape,
                                    const decode::EngineSpec& target, int vocab) {
  return {.name = "speculation within",
          .max_seqs = target.max_seqs,
          .tree = within.room,
          .max_tokens = target.max_tokens,
          .outbox_bytes =
              within.outbox_bytes +
              kv::DeviceStep::outbox_bytes(target.max_seqs, target.max_seqs * within.room.nodes),
          .vocab = vocab,
          .draws = within.draws,
          .ahead = target.device.kind == Device::Kind::cuda,
          .chain_around = 1 + shape.most(within.room.levels),
          .turns = shape.rounds,
          .reads_text = within.reads_text,
          .gpu = decode::gpu_of(target)};
}

std::string NestedDrafter::name() const { return "nested " + within_->name(); }

std::vector<kv::Reading> NestedDrafter::readings() const {
  std::vector<kv::Reading> all = within_->readings();
  all.push_back(verifier_.reader().reading);
  return all;
}

size_t NestedDrafter::outbox_bytes(int max_seqs) const {
  decode::EngineSpec spec = verifier_.target().spec();
  spec.max_seqs = max_seqs;
  return Round::outbox_bytes_within(
      bounds(Within::of(*within_, max_seqs), shape_, spec, verifier_.target().config().vocab_size));
}

int NestedDrafter::max_places() const {
  const int nodes = within_->largest().size();
  const auto logits = static_cast<int>(verifier_.target().logit_rows().rows() / nodes);
  return std::min({within_->max_places(), verifier_.target().room_for_places(nodes, 1), logits});
}

void NestedDrafter::join(Round& round) {
  const decode::Engine& target = verifier_.target();
  const Round::Bounds b = bounds(Within::of(*within_, target.spec().max_seqs), shape_,
                                 target.spec(), target.config().vocab_size);
  MemoryPlan plan;
  Round::plan(b, target.spec().device, plan);
  arena_ = std::make_unique<Arena>(std::move(plan));
  round_ = std::make_unique<Round>(b, *arena_, target.exec(), &round);
  within_->join(*round_);
}

void NestedDrafter::abandon() {
  flights_.clear();
  within_->abandon();
}

const TokenTree& NestedDrafter::shape(std::span<const decode::DrawSeq> seqs) {
  // A draft reads the last tokens of a text again, and there must be as many.
  const bool is_long_enough = std::ranges::all_of(
      seqs, [](const decode::DrawSeq& s) { return s.tokens.size() >= size_t{kNewestTokens}; });
  return is_long_enough ? chain_ : root_;
}

void NestedDrafter::prepare(Round& round) {
  Flight& flight = flights_.emplace_back();
  has_drafted_ = flight.drafted = round.tree().levels() > 1;
  if (!has_drafted_) return;
  const std::span<const decode::DrawSeq> seqs = round.seqs();
  std::vector<int32_t> slots;
  for (const decode::DrawSeq& s : seqs) {
    flight.seqs.push_back(s.seq);
    slots.push_back(s.slot);
  }
  round.grow(shape_.enough);
  round_->begin_within(within_->shape(seqs));
  for (int turn = 0; options_.simulate && turn < shape_.rounds; ++turn)
    for (size_t b = 0; b < seqs.size(); ++b)
      round_->force(b,
                    simulated_path(round_->tree(), *options_.simulate,
                                   {round_->seed(), seqs[b].seq, seqs[b].position, turn + 1}),
                    turn);
  within_->prepare(*round_);
  const double kv_before = verifier_.reader().kv_bytes();
  verifier_.lay_out(*round_, slots);
  const auto each = static_cast<double>(verifier_.target().weight_bytes()) +
                    verifier_.reader().kv_bytes() - kv_before;
  bytes_read_ += shape_.rounds * each;
}

void NestedDrafter::draft(Round& round) {
  if (round.tree().levels() == 1) return;
  const double kv_before = verifier_.reader().kv_bytes();
  for (int turn = 0; turn < shape_.rounds; ++turn) {
    round_->enter(turn);
    round_->mark(Round::begun);
    within_->draft(*round_);
    round_->mark(Round::drafted);
    verifier_.score(*round_);
    round_->mark(Round::scored);
    verifier_.verify(*round_);
    within_->keep(*round_);
    const Tensor logits = verifier_.logits(*round_, 0);
    round_->append(logits, turn + 1 == shape_.rounds);
    round_->mark(Round::verified);
    if (options_.on_verified && verifier_.target().queue() == nullptr)
      options_.on_verified(*round_, logits);
  }
  // On a GPU known since it was laid out.
  if (verifier_.target().queue() == nullptr)
    bytes_read_ += verifier_.reader().kv_bytes() - kv_before;
}

bool NestedDrafter::is_recordable() const {
  return within_->is_recordable() && verifier_.target().is_recordable(verifier_.reader().reading);
}

void NestedDrafter::accept(const RoundResults& results, const std::vector<bool>& gone) {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  if (!flight.drafted) return;
  std::vector<int> accepted;
  for (size_t b = 0; b < results.n_seqs(); ++b)
    accepted.push_back(static_cast<int>(results.path(b).size()));
  within_->accept_chains(accepted, gone);
  const bool reads_text = within_->reads_text();
  const int least = shallowest_leaf(round_->tree());
  for (int turn = 0; turn < results.n_within(); ++turn) {
    for (size_t b = 0; b < results.n_seqs(); ++b)
      if (const int n = results.accepted_within(turn, b); n >= 0 && !gone[b]) {
        const int drafted = reads_text ? results.found_within(turn, b) : round_->tree().size() - 1;
        stats_.add(RoundEvent{.seq = flight.seqs[b],
                              .drafted = drafted,
                              .accepted = n,
                              .refused = n < (reads_text ? drafted : least) ? 1 : 0});
      }
    stats_.draft_s += results.seconds_within(turn, Round::begun, Round::drafted);
    stats_.target_s += results.seconds_within(turn, Round::drafted, Round::scored);
    stats_.verify_s += results.seconds_within(turn, Round::scored, Round::verified);
  }
}

}  // namespace tandem::speculate
