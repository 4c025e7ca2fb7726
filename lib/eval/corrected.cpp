#include "eval/corrected.h"

#include "base/check.h"
#include "model/spec/work.h"
#include "speculate/plan/chain_tokens.h"
#include "speculate/tree/token_tree.h"

namespace tandem::eval {
namespace {

speculate::TreeRoom room_of(const Correction& by) {
  return speculate::TreeRoom::of(speculate::chain_tree(by.gamma + 1));
}

double ratio(int64_t a, int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0;
}

}  // namespace

void RoundCounts::add(const RoundCounts& other) {
  const int64_t drafts = offered + other.offered;
  if (drafts > 0)
    density = (density * static_cast<double>(offered) +
               other.density * static_cast<double>(other.offered)) /
              static_cast<double>(drafts);
  rounds += other.rounds;
  emitted += other.emitted;
  accepted += other.accepted;
  offered += other.offered;
  cut_short += other.cut_short;
  lossy = lossy || other.lossy;
}

double RoundCounts::advance() const { return ratio(emitted, rounds); }
double RoundCounts::most() const { return rounds > 0 ? 1 + ratio(offered, rounds) : 0; }
double RoundCounts::apu() const {
  return rounds > 0 ? speculate::params_per_token(most(), density, advance()) : 0;
}
double RoundCounts::rollback() const { return ratio(offered - accepted, cut_short); }

Corrected::Corrected(decode::Engine& engine, int cache, const Correction& by)
    : engine_(engine),
      channels_(engine.spec().channels[static_cast<size_t>(cache)]),
      rounds_(speculate::model_rounds(engine, {engine, {.keys = cache, .channels = channels_}},
                                      speculate::chain_tree(by.gamma + 1),
                                      {.verify = by.verify, .floor = by.floors.rule()})) {
  TANDEM_CHECK(channels_ > 0, "expected sparse FFN channels in cache {}, found all", cache);
}

Ids Corrected::write(const decode::Request& request, decode::GenerateSpec how) {
  const ffn::Channels& channels = *engine_.channels();
  const speculate::RoundStats before = rounds_->stats();
  const ffn::ListsRead read_before = channels.lists_read(channels_);
  how.max_active = 1;  // correction_needs is for one
  Ids written;
  decode::GenerateEvents events;
  events.on_token = [&](const decode::TokenEvent& token) { written.push_back(token.id); };
  decode::generate(engine_, *rounds_, {&request, 1}, how, events);
  const speculate::RoundStats did = rounds_->stats().since(before);
  const double share = channels.share_read(channels_, read_before);
  counts_ = {.rounds = did.rounds,
             .emitted = did.emitted,
             .accepted = did.accepted,
             .offered = did.offered,
             .cut_short = did.cut_short,
             .density = model::param_density(engine_.config(), share,
                                             channels.policy(channels_).needs().after_gate),
             .lossy = did.lossy};
  return written;
}

speculate::RoundNeeds correction_needs(const Correction& by, int vocab) {
  if (!by.any()) return {};
  constexpr int kOneSequence = 1;
  return speculate::target_needs(room_of(by), kOneSequence, vocab)
      .with(speculate::draft_needs(room_of(by), kOneSequence));
}

void plan_correction(const Correction& by, const decode::EngineSpec& spec,
                     const model::ModelConfig& config, MemoryPlan& plan) {
  if (by.any()) speculate::plan_rounds(room_of(by), spec, config, true, plan);
}

}  // namespace tandem::eval
