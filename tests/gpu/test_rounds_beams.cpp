#include <doctest/doctest.h>

#include "engine_pair.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

struct Run {
  std::vector<Ids> ids;
  std::vector<int64_t> accepted;

  bool operator==(const Run&) const = default;
};

Run run(Reader target, Reader draft, const std::vector<decode::Request>& requests,
        const Beams& beams, const RoundOptions& options, int n_tokens = 80) {
  const auto rounds = beam_rounds(target, draft, beams, options);
  Run r;
  r.ids = generate(*target.engine, requests, rules(n_tokens), rounds.get()).ids;
  r.accepted = rounds->stats().accepted_hist;
  return r;
}

}  // namespace

TEST_SUITE("gpu/rounds-beams") {
  TEST_CASE("f32: rounds of beams are those of the CPU: texts and what is accepted") {
    const SelfPair cpu_self(6, {}, DType::f32, target_on(kGpu)), gpu_self(6, kGpu);
    const Pair cpu_pair, gpu_pair("tiny-2m", kGpu);
    int same = 0, n = 0;
    for (const auto verify :
         {VerifyChoice::floor, VerifyChoice::floor_or_argmax, VerifyChoice::match})
      for (const Beams& beams : {Beams{.width = 1, .gamma = 5}, Beams{.width = 4, .gamma = 5},
                                 Beams{.width = 8, .gamma = 3}}) {
        CAPTURE(beams.width);
        const RoundOptions options{.verify = verify, .floor = {.probability = 0.05}};
        const auto check = [&](const Run& want, const Run& got) {
          // Logits of devices differ by rounding, which seldom changes a choice.
          for (size_t i = 0; i < want.ids.size(); ++i)
            CHECK(Ids(got.ids[i].begin(), got.ids[i].begin() + 4) ==
                  Ids(want.ids[i].begin(), want.ids[i].begin() + 4));
          same += want == got ? 1 : 0;
          ++n;
        };
        const auto self = [&](const SelfPair& pair) {
          return run(*pair.engine, {*pair.engine, {.keys = 1}}, pair.requests(), beams, options);
        };
        const auto other = [&](const Pair& pair) {
          return run(*pair.target, *pair.draft, pair.requests(4), beams, options);
        };
        check(self(cpu_self), self(gpu_self));
        check(other(cpu_pair), other(gpu_pair));
      }
    MESSAGE(same << " of " << n << " runs accept the same, round by round");
    CHECK(same >= n - 2);
  }

  TEST_CASE(
      "by match the text is the target's, of beams with more nodes than a mask word has bits") {
    const SelfPair pair(12, kGpu);
    const auto requests = pair.requests();
    const Generated plain = generate(*pair.engine, requests, rules(120));
    for (const size_t n : {size_t{1}, size_t{4}}) {
      const std::vector<decode::Request> some(requests.begin(),
                                              requests.begin() + static_cast<ptrdiff_t>(n));
      // Four sequences at once take as many rows as the engine has room for.
      const Beams beams = n == 1 ? Beams{.width = 8, .gamma = 10} : Beams{.width = 3, .gamma = 6};
      const Run r = run(*pair.engine, {*pair.engine, {.keys = 1}}, some, beams, {}, 120);
      for (size_t i = 0; i < n; ++i) CHECK(r.ids[i] == plain.ids[i]);
    }
  }

  TEST_CASE("a batch that shrinks: texts by a floor stay what they are alone") {
    const SelfPair pair(6, kGpu);
    std::vector<decode::Request> requests = pair.requests();
    requests.resize(4);
    const RoundOptions options{.verify = VerifyChoice::floor, .floor = {.probability = 0.05}};
    const Beams beams{.width = 4, .gamma = 5};
    const Reader draft{*pair.engine, {.keys = 1}};
    const Run together = run(*pair.engine, draft, requests, beams, options, 60);
    int same = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Run alone = run(*pair.engine, draft, {requests[i]}, beams, options, 60);
      CHECK(Ids(alone.ids[0].begin(), alone.ids[0].begin() + 4) ==
            Ids(together.ids[i].begin(), together.ids[i].begin() + 4));
      same += alone.ids[0] == together.ids[i] ? 1 : 0;
    }
    CHECK(same >= 3);
  }
}
