#include <doctest/doctest.h>

#include <cmath>

#include "generate_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using decode::Finish;
using decode::GenerateSpec;
using decode::Request;

namespace {

Ids prompt_of(const Engine& engine, const std::string& text) {
  return engine.tokenizer()->encode(text);
}

const char* const kPrompts[] = {"The keeper of the lighthouse", "Wind from the north, and",
                                "On the third day the lamp was lit before the fog came in.", "Log"};

/// Prompts of different lengths on tiny-2m.
std::vector<Request> requests(const Engine& engine, size_t n) {
  std::vector<Request> r;
  for (size_t i = 0; i < n; ++i) r.push_back(request(prompt_of(engine, kPrompts[i])));
  return r;
}

/// Greedy ids from prefill and repeated extend.
Ids greedy(Engine& engine, const Ids& prompt, size_t n, std::vector<Row>* rows = nullptr) {
  const int slot = engine.cache().create();
  Row row = prefill(engine, slot, prompt);
  Ids ids;
  while (true) {
    ids.push_back(argmax(row));
    if (rows != nullptr) rows->push_back(row);
    if (ids.size() == n) break;
    row = extend(engine, slot, std::span(ids).last(1));
  }
  engine.cache().release(slot);
  return ids;
}

}  // namespace

TEST_SUITE("decode/generate") {
  TEST_CASE("greedy text is repeated extend; logprobs are the log-softmax; top lists are sorted") {
    const auto engine = make_engine(tiny_model("tiny-2m"));
    const int pages = engine->cache().store().free_pages();
    GenerateSpec spec;
    spec.max_tokens = 24;
    spec.sampler.top_logprobs = 5;
    const auto three = requests(*engine, 3);
    const Generated g = generate(*engine, three, spec);
    for (size_t i = 0; i < three.size(); ++i) {
      CAPTURE(i);
      std::vector<Row> rows;
      CHECK(g.ids[i] == greedy(*engine, three[i].tokens, 24, &rows));
      CHECK(g.finish[i] == Finish::length);
      REQUIRE(g.events[i].size() == rows.size());
      for (size_t t = 0; t < rows.size(); ++t) {
        const decode::TokenEvent& e = g.events[i][t];
        double sum = 0;
        for (const float x : rows[t]) sum += std::exp(double{x});
        const auto logprob = [&](int32_t id) {
          return rows[t][static_cast<size_t>(id)] - std::log(sum);
        };
        CHECK(std::abs(logprob(e.id) - e.logprob) <= 2e-6);
        REQUIRE(e.top.size() == 5);
        CHECK(e.top[0].first == e.id);
        for (size_t k = 0; k < 5; ++k) {
          CHECK(std::abs(logprob(e.top[k].first) - e.top[k].second) <= 2e-6);
          if (k > 0) CHECK(e.top[k].second <= e.top[k - 1].second);
        }
      }
      Ids all = three[i].tokens;
      all.insert(all.end(), g.ids[i].begin(), g.ids[i].end());
      CHECK(engine->tokenizer()->decode(all) ==
            engine->tokenizer()->decode(three[i].tokens) + g.text[i]);
    }
    CHECK(g.report.new_tokens == 72);
    CHECK(g.report.decode_steps == 23);
    CHECK(g.report.tokens_decoded == 69);
    CHECK(engine->cache().store().free_pages() == pages);
  }

  TEST_CASE("more requests than places give the same texts as one at a time") {
    const auto many = make_engine(tiny_model("tiny-2m"), {.max_seqs = 3, .max_tokens = 128});
    const auto one = make_engine(tiny_model("tiny-2m"), {.max_seqs = 1, .max_tokens = 128});
    GenerateSpec spec;
    spec.max_tokens = 16;
    spec.stop_ids = {greedy(*one, prompt_of(*one, kPrompts[0]), 5).back()};  // unequal lengths
    std::vector<Request> r = requests(*many, 4);
    for (int i = 0; i < 4; ++i) r.push_back(r[static_cast<size_t>(i)]);
    const Generated waves = generate(*many, r, spec), single = generate(*one, r, spec);
    CHECK(waves.ids == single.ids);
    CHECK(waves.text == single.text);
    CHECK(waves.finish == single.finish);
    CHECK(waves.report.decode_steps < single.report.decode_steps);
  }

  TEST_CASE("a stop id ends the text and is not shown; max_context ends it too") {
    const auto engine = make_engine(tiny_model("tiny-2m"));
    const Ids prompt = prompt_of(*engine, kPrompts[0]), ids = greedy(*engine, prompt, 12);
    GenerateSpec spec;
    spec.max_tokens = 12;
    const Generated plain = generate(*engine, {request(prompt)}, spec);
    const size_t stop = 7, first = static_cast<size_t>(
                               std::find(ids.begin(), ids.end(), ids[stop]) - ids.begin());
    spec.stop_ids = {ids[stop]};
    const Generated g = generate(*engine, {request(prompt)}, spec);
    CHECK(g.finish[0] == Finish::stop_id);
    CHECK(g.ids[0] == Ids(ids.begin(), ids.begin() + static_cast<long>(first) + 1));
    CHECK(plain.text[0].starts_with(g.text[0]));
    CHECK(g.text[0] != plain.text[0]);

    spec.stop_ids.clear();
    spec.max_context = static_cast<int>(prompt.size()) + 4;
    const Generated context = generate(*engine, {request(prompt)}, spec);
    CHECK(context.finish[0] == Finish::context);
    CHECK(context.ids[0] == Ids(ids.begin(), ids.begin() + 4));
  }

  TEST_CASE("a stop string is not shown, and every event before it is clean") {
    const auto engine = make_engine(tiny_model("tiny-2m"));
    const Ids prompt = prompt_of(*engine, kPrompts[2]);
    GenerateSpec spec;
    spec.max_tokens = 40;
    const std::string plain = generate(*engine, {request(prompt)}, spec).text[0];
    REQUIRE(plain.size() > 30);
    const std::string stop = plain.substr(18, 7);
    spec.stops = {stop, "never in any text"};
    const Generated g = generate(*engine, {request(prompt)}, spec);
    CHECK(g.finish[0] == Finish::stop_string);
    CHECK(g.text[0] == plain.substr(0, plain.find(stop)));
    CHECK(g.ids[0].size() < 40);
  }

  TEST_CASE("a shared prefix gives the text of the whole prompt, with and without new tokens") {
    const auto engine = make_engine(tiny_model("tiny-2m"));
    const Ids all = prompt_of(*engine, kPrompts[2]);
    GenerateSpec spec;
    spec.max_tokens = 10;
    const Ids want = generate(*engine, {request(all)}, spec).ids[0];
    for (const size_t n : {size_t{3}, all.size()}) {
      CAPTURE(n);
      const int slot = engine->cache().create();
      prefill(*engine, slot, std::span(all).first(n));
      const std::string bytes = committed_bytes(engine->cache(), slot);
      Request r = request(Ids(all.begin() + static_cast<long>(n), all.end()));
      r.prefix_slot = slot;
      r.prefix = std::span(all).first(n);
      const Generated g = generate(*engine, {r, r, r, r}, spec);
      for (const Ids& ids : g.ids) CHECK(ids == want);
      CHECK(committed_bytes(engine->cache(), slot) == bytes);
      engine->cache().release(slot);
    }
  }

  TEST_CASE("an interruption ends generation after the step in flight and gives sequences back") {
    const auto engine = make_engine(tiny_model("tiny-2m"), {.chunk = 4});
    const int pages = engine->cache().store().free_pages();
    const auto two = requests(*engine, 2);
    GenerateSpec spec;
    spec.max_tokens = 20;
    const Generated plain = generate(*engine, two, spec);
    size_t before = 0;
    for (int polls = 0; polls < 12; ++polls) {
      CAPTURE(polls);
      std::vector<Ids> ids(2);
      int left = polls;
      decode::GenerateEvents events;
      events.interrupted = [&] { return left-- <= 0; };
      events.on_token = [&](const decode::TokenEvent& e) {
        ids[static_cast<size_t>(e.seq)].push_back(e.id);
      };
      try {
        decode::generate(*engine, two, spec, events);
        FAIL("nothing thrown");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::interrupted);
      }
      for (size_t i = 0; i < 2; ++i)
        CHECK(std::equal(ids[i].begin(), ids[i].end(), plain.ids[i].begin()));
      if (ids[1].size() > 1) {
        CHECK(ids[0].size() == ids[1].size());
        CHECK(ids[1].size() == before + 1);  // every step that ended is told
      }
      before = ids[1].size();
      CHECK(engine->cache().store().free_pages() == pages);
    }
    CHECK(generate(*engine, two, spec).ids == plain.ids);
  }
}
