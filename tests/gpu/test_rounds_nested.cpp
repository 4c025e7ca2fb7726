#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <tuple>

#include "device_buffer.h"
#include "engine_pair.h"
#include "kernels/append_case.h"
#include "lookup_case.h"
#include "nested_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

TEST_SUITE("gpu/rounds/nested") {
  TEST_CASE("a round within another lengthens chains that are too short, each at its own pace") {
    const AppendCase c;
    const DeviceBuffer tokens(c.tokens), path(c.path), accepted(c.n_accepted), bonus(c.bonus),
        before(c.newest), logits(c.logits), length(c.length), enough(c.enough), most(c.most),
        chain(c.chain), children(c.children), row(c.row), chain_logits(c.chain_logits),
        forced(c.forced), seen_begin(c.seen_begin), seen(c.seen), kept(std::vector<int32_t>(3, 99)),
        newest(std::vector<int32_t>(9, 99)), taken(std::vector<int32_t>(3, 99));
    AppendRoundParams p = AppendCase::params();
    p.chain_tokens = chain.as<int32_t>();
    p.chain_children = children.as<int32_t>();
    p.chain_length = length.as<int32_t>();
    p.chain_logits = chain_logits.as<float>();
    p.chain_row = row.as<int32_t>();
    p.enough = enough.as<int32_t>();
    p.most = most.as<int32_t>();
    p.forced = forced.as<int32_t>();
    p.seen = seen.as<int32_t>();
    p.seen_begin = seen_begin.as<int32_t>();
    p.tokens = tokens.as<int32_t>();
    p.path = path.as<int32_t>();
    p.n_accepted = accepted.as<int32_t>();
    p.bonus = bonus.as<int32_t>();
    p.newest = before.as<int32_t>();
    p.logits = logits.as<float>();
    p.ends = {kept.as<int32_t>(), newest.as<int32_t>(), nullptr};
    p.taken = taken.as<int32_t>();
    cuda_table().append_round(p, queue().stream());
    CHECK(chain.vector<int32_t>() == c.chain_want);
    CHECK(children.vector<int32_t>() == c.children_want);
    CHECK(length.vector<int32_t>() == c.length_want);
    CHECK(chain_logits.vector<float>() == c.chain_logits_want);
    CHECK(forced.vector<int32_t>() == c.forced_want);
    CHECK(seen.vector<int32_t>() == c.seen_want);
    CHECK(kept.vector<int32_t>() == c.kept_want);
    CHECK(newest.vector<int32_t>() == c.newest_want);
    CHECK(taken.vector<int32_t>() == c.taken_want);
  }

  TEST_CASE("greedy text is the target's own, whatever few keys the levels within read") {
    check_nested_texts(NestedPair(retrieval(5, 2), kGpu));
    check_nested_texts(NestedPair(streaming(1, 12), kGpu, streaming(1, 20)));
  }

  TEST_CASE("the same, one round after the other") {
    check_nested_texts(NestedPair(retrieval(5, 2), kGpu), {.ahead = false});
  }

  TEST_CASE("readings of all keys and the target as draft: nearly everything is accepted") {
    check_nested_own_draft(kGpu, 6);
  }

  TEST_CASE("rounds are those of the CPU: drafts, chains and tokens of sampled text") {
    const NestedPair cpu(streaming(1, 12), {}, {}, "tiny-2m", {}, target_on(kGpu)),
        gpu(streaming(1, 12), kGpu);
    int same = 0, n = 0;
    for (const NestedCase& c : nested_cases())
      for (const bool penalty : {false, true}) {
        CAPTURE(c.tree.size());
        CAPTURE(penalty);
        auto how = rules(48, 0.8F, 7);
        if (penalty) how.sampler.rule.repetition_penalty = 1.2F;
        if (!penalty) how.sampler.rule.top_p = 0.9;
        const auto run = [&](const NestedPair& pair) {
          // The rule that `auto` chooses differs between devices.
          const auto rounds = pair.rounds(c.tree, c.shape, {.verify = VerifyChoice::sequoia},
                                          {.verify = VerifyChoice::sequoia});
          const Generated g = test::generate(*pair.target, pair.requests(), how, rounds.get());
          return std::pair(g.ids, rounds->stats_within()->accepted_hist);
        };
        const auto want = run(cpu), got = run(gpu);
        ++n;
        same += want == got ? 1 : 0;
        CHECK(want.first[0][0] == got.first[0][0]);
      }
    MESSAGE(same << " of " << n << " runs accept the same, round by round");
    CHECK(same >= n - 3);
  }

  TEST_CASE("what followed the last tokens before is found as by the index") {
    PhiloxStream draw(5);
    // Some texts are longer than what a block reads at once, the last as long as texts get.
    for (const auto& [vocab, longest, nodes, tentative, tokens] : {std::array{1, 8, 9, 12, 300},
                                                                   {2, 3, 2, 0, 2000},
                                                                   {5, 8, 9, 12, 20000},
                                                                   {60, 1, 4, 5, 9000},
                                                                   {2, 64, 9, 12, 131072},
                                                                   {8000, 3, 9, 12, 131072}}) {
      CAPTURE(vocab);
      CAPTURE(tokens);
      const LookupCase c(draw, vocab, longest, nodes, tentative, tokens);
      const DeviceBuffer ids(c.tokens), children(c.children), proposed(c.proposed), seen(c.seen),
          begin(c.seen_begin), length(c.length);
      ProposeLookupParams p = c.params();
      p.tokens = ids.as<int32_t>();
      p.n_children = children.as<int32_t>();
      p.n_proposed = proposed.as<int32_t>();
      p.seen = seen.as<int32_t>();
      p.seen_begin = begin.as<int32_t>();
      p.chain_length = tentative > 0 ? length.as<int32_t>() : nullptr;
      cuda_table().propose_lookup(p, queue().stream());
      CHECK(ids.vector<int32_t>() == c.tokens_want);
      CHECK(children.vector<int32_t>() == c.children_want);
      CHECK(proposed.vector<int32_t>() == c.proposed_want);
    }
  }

  TEST_CASE("lookups within: greedy text is the target's own, and all keys accept everything") {
    check_nested_lookup_texts(SelfPair(retrieval(5, 2), kGpu));
    check_nested_lookup_texts(SelfPair(streaming(1, 12), kGpu));
    check_nested_lookups_kept(kGpu, 6);
  }

  TEST_CASE("lookups within are those of the CPU") {
    const SelfPair cpu(streaming(1, 12), {}, DType::f32, {}, target_on(kGpu)),
        gpu(streaming(1, 12), kGpu);
    const auto run = [](const SelfPair& pair, float temperature) {
      const auto rounds = lookups_within(pair, 4, {.rounds = 3, .enough = 5});
      const Generated g = test::generate(*pair.engine, quoting_requests(pair),
                                         rules(48, temperature, 7), rounds.get());
      return std::tuple(g.ids, rounds->stats_within()->drafted,
                        rounds->stats_within()->accepted_hist);
    };
    CHECK(run(cpu, 0) == run(gpu, 0));
    CHECK(std::get<0>(run(cpu, 0.7F))[0] == std::get<0>(run(gpu, 0.7F))[0]);
  }

  TEST_CASE("simulated acceptance of both levels follows its vectors") {
    check_nested_simulation(kGpu);
  }
}
