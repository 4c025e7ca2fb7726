#include <doctest/doctest.h>

#include <set>

#include "generate_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::GenerateSpec;
using decode::Request;

namespace {

std::vector<Request> prompts(const decode::Engine& engine) {
  return {request(random_ids(engine, 40, 1)), request(random_ids(engine, 7, 2)),
          request(random_ids(engine, 90, 3))};
}

GenerateSpec sampled(int64_t seed) {
  GenerateSpec spec;
  spec.max_tokens = 20;
  spec.sampler.seed = seed;
  spec.sampler.rule.temperature = 1.0f;
  return spec;
}

}  // namespace

TEST_SUITE("decode/sampled") {
  TEST_CASE("f32: sampled text depends on the seed and on nothing else") {
    const auto engine = make_engine(small_model("llama-3.1"));
    const auto three = prompts(*engine);
    const Generated first = generate(*engine, three, sampled(5));
    CHECK(generate(*engine, three, sampled(5)).ids == first.ids);
    CHECK(generate(*engine, three, sampled(6)).ids != first.ids);
    const int64_t beyond_32_bits = int64_t{1} << 32;
    CHECK(generate(*engine, three, sampled(5 + beyond_32_bits)).ids != first.ids);

    // Alone, beside other mates, and one after the other: sequence i keeps its text.
    CHECK(generate(*engine, {three[0]}, sampled(5)).ids[0] == first.ids[0]);
    CHECK(generate(*engine, {three[0], three[2], three[1]}, sampled(5)).ids[0] == first.ids[0]);
    const auto one = make_engine(small_model("llama-3.1"), {.chunk = 16, .max_seqs = 1});
    CHECK(generate(*one, three, sampled(5)).ids == first.ids);
  }

  TEST_CASE("sequences of one prompt draw different texts") {
    const auto engine = make_engine(small_model("llama-3.1"), {.max_seqs = 8});
    const Generated g = generate(*engine, std::vector<Request>(8, prompts(*engine)[0]), sampled(1));
    CHECK(std::set<Ids>(g.ids.begin(), g.ids.end()).size() == 8);
  }

  TEST_CASE("top_k = 1 is greedy at any temperature, and so is a vanishing top_p") {
    const auto engine = make_engine(small_model("llama-3.1"));
    GenerateSpec greedy;
    greedy.max_tokens = 20;
    const auto want = generate(*engine, prompts(*engine), greedy).ids;
    GenerateSpec spec = sampled(7);
    spec.sampler.rule.temperature = 3.0f;
    spec.sampler.rule.top_k = 1;
    CHECK(generate(*engine, prompts(*engine), spec).ids == want);
    spec.sampler.rule.top_k = 0;
    spec.sampler.rule.top_p = 1e-6f;
    CHECK(generate(*engine, prompts(*engine), spec).ids == want);
    spec.sampler.rule.top_p = 1.0f;
    CHECK(generate(*engine, prompts(*engine), spec).ids != want);
  }

  TEST_CASE("repetition_penalty lowers what the sequence holds already, prompt included") {
    const auto engine = make_engine(small_model("llama-3.1"));
    GenerateSpec spec;
    spec.max_tokens = 60;
    spec.sampler.rule.repetition_penalty =
        1e6f;  // positive logits of seen ids vanish, negative ones sink
    const auto three = prompts(*engine);
    const Generated g = generate(*engine, three, spec);
    for (size_t i = 0; i < three.size(); ++i) {
      std::set<int32_t> seen(three[i].tokens.begin(), three[i].tokens.end());
      for (const int32_t id : g.ids[i]) CHECK(seen.insert(id).second);
    }
    const Generated alone = generate(*engine, {three[0]}, spec);
    CHECK(alone.ids[0] == g.ids[0]);  // neighbours' ids are not its own
    spec.sampler.rule.repetition_penalty = 1.0f;
    CHECK(generate(*engine, three, spec).ids != g.ids);
  }
}
