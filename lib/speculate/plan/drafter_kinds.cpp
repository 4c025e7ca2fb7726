#include "speculate/plan/drafter_kinds.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "speculate/draft/lookup_index.h"
#include "speculate/plan/proposals.h"

namespace tandem::speculate {
namespace {

std::unique_ptr<Rounds> no_rounds(const Proposal& /*proposal*/, const DraftReaders& /*readers*/,
                                  RoundOptions /*options*/, WithinOptions /*within*/) {
  TANDEM_CHECK(false, "this draft needs plain decoding or make_choosing_rounds");
}

std::unique_ptr<Rounds> rounds_of_model(const Proposal& proposal, const DraftReaders& readers,
                                        RoundOptions options, WithinOptions /*within*/) {
  const TokenTree& tree = proposal.tree;
  if (proposal.beams.width > 0)
    return beam_rounds(readers.target, readers.drafter(), proposal.beams, std::move(options));
  if (proposal.chooses_gamma)
    return chain_rounds(readers.target, readers.drafter(), tree.levels() - 1, std::move(options));
  return model_rounds(readers.target, readers.drafter(), tree, std::move(options));
}

std::unique_ptr<Rounds> rounds_of_lookup(const Proposal& proposal, const DraftReaders& readers,
                                         RoundOptions options, WithinOptions /*within*/) {
  return lookup_rounds(readers.target, proposal.longest, proposal.tree.levels() - 1,
                       std::move(options));
}

std::unique_ptr<Rounds> rounds_of_nested(const Proposal& proposal, const DraftReaders& readers,
                                         RoundOptions options, WithinOptions within) {
  if (readers.model)
    return nested_rounds(readers.target, *readers.own, *readers.model, proposal.tree,
                         *proposal.nested, std::move(within), std::move(options));
  return nested_lookup_rounds(readers.target, *readers.own, proposal.longest,
                              proposal.tree.levels() - 1, *proposal.nested, std::move(within),
                              std::move(options));
}

EngineUse engines_of_nested(const Draft& draft) {
  return {.own = &draft,
          .model = draft.inner.kind == WithinKind::model ? &draft.inner : nullptr,
          .nested = true};
}

constexpr DrafterKind kKinds[] = {
    {DraftKind::none, true, true, 0, [](const Draft&) { return EngineUse{.speculates = false}; },
     no_rounds},
    {DraftKind::model, true, true, 0, [](const Draft& d) { return EngineUse{.model = &d}; },
     rounds_of_model},
    {DraftKind::self, true, true, 0,
     [](const Draft& d) {
       return d.copies_target() ? EngineUse{.model = &d} : EngineUse{.own = &d};
     },
     rounds_of_model},
    {DraftKind::ngram, false, false, LookupIndex::kTokenBytes,
     [](const Draft&) { return EngineUse{}; }, rounds_of_lookup},
    {DraftKind::nested, true, false, 0, engines_of_nested, rounds_of_nested},
    {DraftKind::automatic, true, true, 0, engines_of_nested, no_rounds},
};

static_assert(std::size(kKinds) == enum_names(DraftKind{}).size());

}  // namespace

const DrafterKind& drafter_kind(DraftKind kind) {
  return *std::ranges::find(kKinds, kind, &DrafterKind::kind);
}

}  // namespace tandem::speculate
