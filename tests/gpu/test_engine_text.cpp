#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "gpu/engine_pair.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using decode::GenerateSpec;
using decode::Request;

namespace {

const char* const kPrompts[] = {
    "The keeper of the lighthouse", "Wind from the north, and",
    "On the third day the lamp was lit before the fog came in, and the boat had not come back.",
    "Log", "There was once a king who had three sons. The eldest"};

std::vector<Request> requests(const Engine& engine) {
  std::vector<Request> r;
  for (const char* prompt : kPrompts) r.push_back(request(engine.tokenizer()->encode(prompt)));
  return r;
}

GenerateSpec greedy(int n) {
  GenerateSpec spec;
  spec.max_tokens = n;
  return spec;
}

GenerateSpec sampled(int n) {
  GenerateSpec spec = greedy(n);
  spec.sampler = {
      .rule = {.temperature = 0.8f, .top_k = 50, .top_p = 0.9, .repetition_penalty = 1.2f},
      .seed = 7,
      .top_logprobs = 6};
  return spec;
}

/// Largest difference of what is told with the tokens; ids must be the same.
double largest_logprob_difference(const Generated& a, const Generated& b) {
  double worst = 0;
  for (size_t i = 0; i < a.events.size(); ++i)
    for (size_t t = 0; t < a.events[i].size(); ++t) {
      const decode::TokenEvent &x = a.events[i][t], &y = b.events[i][t];
      worst = worse(worst, std::abs(double{x.logprob} - double{y.logprob}));
      REQUIRE(x.top.size() == y.top.size());
      // By rank: where two alternatives are nearly equal, they may have changed places.
      for (size_t k = 0; k < x.top.size(); ++k)
        worst = worse(worst, std::abs(double{x.top[k].second} - double{y.top[k].second}));
    }
  return worst;
}

void check_same_text(const Generated& got, const Generated& want) {
  CHECK(got.ids == want.ids);
  CHECK(got.text == want.text);
  CHECK(got.finish == want.finish);
  CHECK(got.report.new_tokens == want.report.new_tokens);
  CHECK(got.report.prompt_tokens == want.report.prompt_tokens);
}

/// What a run tells of tokens and their probabilities, bit for bit.
bool same_bits(const Generated& a, const Generated& b, size_t seq) {
  return std::equal(a.events[seq].begin(), a.events[seq].end(), b.events[seq].begin(),
                    b.events[seq].end(), [](const auto& x, const auto& y) {
                      return x.id == y.id && x.logprob == y.logprob && x.top == y.top;
                    });
}

}  // namespace

TEST_SUITE("gpu/decode/text") {
  TEST_CASE("f32: greedy texts of 100 tokens equal the CPU's, all at once and by turns") {
    for (const std::string model : {"tiny-2m", "tiny-16m"})
      for (const int max_seqs : {1, 3, 5}) {
        CAPTURE(model);
        CAPTURE(max_seqs);
        const EnginePair on = make_pair_of(tiny_model(model), {.max_seqs = max_seqs});
        const auto five = requests(*on.cpu);
        const Generated want = generate(*on.cpu, five, greedy(100));
        check_same_text(generate(*on.gpu, five, greedy(100)), want);

        // Texts that end at different times: the batch shrinks, and others join.
        GenerateSpec spec = greedy(100);
        spec.max_context = 70;
        spec.stop_ids = {want.ids[1][33]};
        spec.stops = {want.text[3].substr(60, 9)};
        const Generated ragged = generate(*on.cpu, five, spec);
        check_same_text(generate(*on.gpu, five, spec), ragged);
        std::set<size_t> lengths;
        for (const Ids& ids : ragged.ids) lengths.insert(ids.size());
        CHECK(lengths.size() >= 3);
        CHECK(on.gpu->cache().store().free_pages() == on.gpu->cache().store().spec().n_pages);
      }
  }

  TEST_CASE("f32: sampled texts equal the CPU's, logprobs and alternatives are near") {
    for (const std::string model : {"tiny-2m", "tiny-16m"})
      for (const float penalty : {1.2f, 1.0f}) {  // with it, one draw is in flight; without, two
        CAPTURE(model);
        CAPTURE(penalty);
        const EnginePair on = make_pair_of(tiny_model(model), {.max_seqs = 5});
        const auto five = requests(*on.cpu);
        GenerateSpec spec = sampled(50);
        spec.sampler.rule.repetition_penalty = penalty;
        const Generated got = generate(*on.gpu, five, spec), want = generate(*on.cpu, five, spec);
        check_same_text(got, want);
        REQUIRE(got.ids == want.ids);
        const double worst = largest_logprob_difference(got, want);
        MESSAGE(model << ", penalty " << penalty << ": largest difference of logprobs " << worst);
        CHECK(worst <= 1e-3);

        // Another rule, then the first again: recorded steps belong to their rule.
        spec.sampler.rule.temperature = 1.3f;
        spec.sampler.rule.min_p = 0.02;
        spec.sampler.seed = 8;
        CHECK(generate(*on.gpu, five, spec).ids == generate(*on.cpu, five, spec).ids);
        CHECK(generate(*on.gpu, five, greedy(20)).ids == generate(*on.cpu, five, greedy(20)).ids);
      }
  }

  TEST_CASE("f32: one engine serves several policies by turns") {
    const EnginePair on =
        make_pair_of(tiny_model("tiny-2m"),
                     {.max_seqs = 5, .caches = {{}, streaming(2, 6), streaming(2, 6, true)}});
    const auto five = requests(*on.cpu);
    std::vector<std::vector<Ids>> texts;
    for (const int policy : {0, 1, 2, 1, 0}) {
      CAPTURE(policy);
      const auto text = [&](Engine& engine) {
        return generate(engine, five, greedy(40), decode::plain_decoder(engine, policy).get()).ids;
      };
      texts.push_back(text(*on.cpu));
      CHECK(text(*on.gpu) == texts.back());
    }
    CHECK(texts[0] != texts[1]);
    CHECK(texts[1] != texts[2]);
  }

  TEST_CASE(
      "bf16: a text is the same on every run, and for any neighbours in a batch of one shape") {
    for (const GenerateSpec& spec : {greedy(60), sampled(60)}) {
      const auto engine =
          make_engine(tiny_model("tiny-16m"), {.compute = DType::bf16, .device = kGpu});
      const Ids prompt = engine->tokenizer()->encode(kPrompts[0]);
      const auto batch = [&](uint64_t seed) {
        std::vector<Request> four = {request(prompt)};
        for (int i = 1; i < 4; ++i)
          four.push_back(request(random_ids(*engine, 30 * i, seed + static_cast<uint64_t>(i))));
        return four;
      };
      const Generated first = generate(*engine, batch(1), spec);
      REQUIRE(first.events[0].size() == 60);
      const Generated again = generate(*engine, batch(1), spec);
      for (size_t i = 0; i < 4; ++i) CHECK(same_bits(again, first, i));
      for (const uint64_t seed : {11u, 21u, 31u}) {
        const Generated beside = generate(*engine, batch(seed), spec);
        CHECK(same_bits(beside, first, 0));
        CHECK(beside.ids[1] != first.ids[1]);
      }
      const auto other =
          make_engine(tiny_model("tiny-16m"), {.compute = DType::bf16, .device = kGpu});
      const Generated fresh = generate(*other, batch(1), spec);
      for (size_t i = 0; i < 4; ++i) CHECK(same_bits(fresh, first, i));
    }
  }
}
