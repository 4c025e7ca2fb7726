#include "speculate/plan/generation.h"

#include "base/clock.h"

namespace tandem::speculate {

void Generation::read_tree(const ops::SampleRule& sampling) {
  tree_ = given_tree(recipe_);
  recorded_ = recorded_rounds(recipe_.spec.shape, pair_, sampling);
}

decode::SequenceRoom Generation::with_timing(decode::SequenceRoom room) const {
  if (!measures()) return room;
  room.prefix = true;
  room.longest += kTimingTokens;
  room.total += int64_t{room.sequences()} * kTimingTokens;
  return room;
}

void Generation::size(const decode::SequenceRoom& room, int batch,
                      const std::function<void(decode::EngineSpec&)>& settle) {
  room_ = room;
  batch_ = batch;
  if (!speculates())
    pair_.size_plain(room, settle);
  else if (chooses_kind())
    size_for_kinds(pair_, with_timing(room), recipe_);
  else
    size_for(pair_, with_timing(room), room_of(recipe_, tree_, batch, measures()), recipe_.spec);
}

const ModelPair::Engines& Generation::load(const decode::GenerateSpec& how,
                                           std::span<const int32_t> prompt) {
  const auto context = static_cast<int>(room_.longest);
  if (chooses_kind()) kinds_.emplace(pair_, recipe_, how.sampler, batch_, context);
  if (tree_) plan_.tree = *tree_;
  if (!chooses()) {
    engines_ = pair_.load(cx_);
    return engines_;
  }
  const Shape& shape = recipe_.spec.shape;
  const RoundTimesSpec timed = timed_rounds(shape, how.sampler, batch_, context);
  const KeptTimes kept(pair_, timed);
  std::optional<TimingTable> times =
      shape.timing.empty() ? kept.read(cx_) : read_timing(shape.timing);
  TreeEvidence evidence{recorded_, recipe_.spec.verify};
  if (times && !shape.measures_acceptance()) {
    plan_ = plan_tree(cx_, shape, evidence, tree_, *times, timed, context);
    if (declines()) {
      pair_.leave_draft();
      pair_.size(room_, target_needs({}, room_.sequences(), pair_.target().config.vocab_size));
    }
    engines_ = pair_.load(cx_);
    return engines_;
  }
  engines_ = pair_.load(cx_);
  if (!times) {
    const Stopwatch watch;
    times = measure_times(cx_, *engines_.target, engines_.drafter(), timed);
    cx_.note(fmt::format("timed speculation steps in {:.1f} s", watch.seconds()));
    kept.write(cx_, *times);
  }
  if (shape.measures_acceptance())
    evidence.measured = measure_acceptance(cx_, recipe_, engines_, prompt, how, batch_);
  plan_ = plan_tree(cx_, shape, evidence, tree_, *times, timed, context);
  return engines_;
}

Generation::Way Generation::way(RoundOptions options) const {
  if (!speculates() || declines()) return {.plain = decode::plain_decoder(*engines_.target)};
  if (!kinds_) return {.rounds = make_rounds(recipe_, engines_, plan_.tree, std::move(options))};
  const KindPlan kinds = kinds_->plan(cx_, engines_);
  cx_.note(kinds.text());
  ChoosingRounds made = make_choosing_rounds(recipe_, kinds, engines_, std::move(options));
  return {.rounds = std::move(made.rounds), .chooser = made.chooser};
}

}  // namespace tandem::speculate
