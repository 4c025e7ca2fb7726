// Plain steps among rounds, for comparison: nothing but their time shows.
#include "rounds_testing.h"
#include "speculate/measure/plain_meter.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;
using speculate::PlainMeter;

namespace {

recipe::Cache hybrid() {
  recipe::Cache c;
  c.kind = recipe::CacheKind::hybrid;
  c.dense_layers = {};
  c.recent = {16};
  c.hybrid = {.bits = 64, .exact = {0.05}, .sample = {0.05}};
  return c;
}

recipe::Cache verified() {
  recipe::Cache c;
  c.kind = recipe::CacheKind::verified;
  c.verified = {.budget = {16}, .window = 4};
  return c;
}

std::vector<decode::Request> long_prompts(const decode::Engine& engine) {
  std::string text;
  for (const char* prompt : kPrompts) text += std::string(prompt) + ". ";
  return {request(engine.tokenizer()->encode(text)),
          request(engine.tokenizer()->encode(text + kPrompts[0]))};
}

/// What a run leaves behind but for its times.
struct Trace {
  std::vector<Ids> ids;
  std::vector<int64_t> accepted_hist;
  int64_t rounds, drafted;
  double bytes_read, keys_read, visible;
  int free_pages;
  bool operator==(const Trace&) const = default;
};

Trace trace(decode::Engine& engine, const std::vector<decode::Request>& requests,
            const decode::GenerateSpec& how, Rounds& rounds, bool measures) {
  const kv::KeyUsage before = engine.cache().total_usage(0);
  PlainMeter meter(rounds);
  const Generated g = generate(
      engine, requests, how,
      measures ? static_cast<decode::Decoder*>(&meter) : static_cast<decode::Decoder*>(&rounds));
  const auto result = meter.result();
  CHECK(result.has_value() == measures);
  if (result) {
    CHECK(result->batch == static_cast<int>(requests.size()));
    // At least two bursts, each of two steps, or of one that takes 30 ms on a busy machine.
    const double total_ms = result->plain_ms * result->steps * result->batch;
    CHECK((result->steps >= 4 || (result->steps >= 2 && total_ms >= 30)));
    CHECK(result->plain_ms > 0);
    CHECK(result->round_ms > 0);
    CHECK(meter.seconds_spent() > 1e-3 * result->plain_ms * result->steps);
    CHECK(meter.seconds_spent() < g.report.decode_s);
  }
  const kv::KeyUsage after = engine.cache().total_usage(0);
  const RoundStats& s = rounds.stats();
  return {g.ids,
          s.accepted_hist,
          s.rounds,
          s.drafted,
          g.report.bytes_read,
          after.bytes() - before.bytes(),
          after.visible - before.visible,
          engine.cache().store().free_pages()};
}

}  // namespace

TEST_SUITE("speculate/plain-steps") {
  TEST_CASE("texts, rounds and counts are those of a run without plain steps") {
    struct Case {
      const char* name;
      recipe::Cache target, draft;
    };
    for (const Case& c : {Case{"streaming", {}, streaming(2, 12)}, Case{"verified", {}, verified()},
                          Case{"retrieval", {}, retrieval(8, 2)},
                          Case{"hybrid target", hybrid(), streaming(2, 12)}}) {
      CAPTURE(c.name);
      const SelfPair pair(c.draft, {}, DType::f32, c.target);
      for (const float temperature : {0.0f, 0.8f}) {
        CAPTURE(temperature);
        const auto run = [&](bool measures) {
          return trace(*pair.engine, long_prompts(*pair.engine), rules(120, temperature, 3),
                       *pair.rounds(chain_tree(4)), measures);
        };
        CHECK(run(true) == run(false));
      }
    }
  }

  TEST_CASE("a draft of its own and prompt lookup") {
    const Pair pair;
    for (const float temperature : {0.0f, 0.8f}) {
      CAPTURE(temperature);
      for (const bool looks_up : {false, true}) {
        CAPTURE(looks_up);
        const auto run = [&](bool measures) {
          const auto rounds = looks_up ? lookup_rounds(*pair.target, 3, 4)
                                       : model_rounds(*pair.target, *pair.draft, tree_of(kBushy));
          return trace(*pair.target, pair.requests(3), rules(150, temperature, 3), *rounds,
                       measures);
        };
        CHECK(run(true) == run(false));
      }
    }
  }

  TEST_CASE("four rounds say nothing yet") {
    const Pair pair;
    const auto rounds = model_rounds(*pair.target, *pair.draft, chain_tree(1));
    for (const auto& [tokens, says] : {std::pair{5, false}, {6, true}}) {
      CAPTURE(tokens);
      PlainMeter meter(*rounds);
      (void)generate(*pair.target, pair.requests(1), rules(tokens), &meter);
      // The first token comes from the prompt, each other one from a round.
      CHECK((meter.seconds_spent() > 0) == says);
    }
  }

  TEST_CASE("rounds that record graphs do not count") {
    const speculate::TimedRound steady{.001f, 4}, records{.06f, 3};
    const std::vector<speculate::TimedRound> rounds = {records, steady, steady, records, steady};
    CHECK(speculate::steady_ms_a_token(rounds) == doctest::Approx(.25));
    CHECK(speculate::steady_ms_a_token(std::vector{steady}) == doctest::Approx(.25));
  }
}
