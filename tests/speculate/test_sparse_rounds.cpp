#include <doctest/doctest.h>

#include "io/file.h"
#include "recipe/scalar.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;

namespace {

/// Budgets that leave out most of the text.
Cache sparse(CacheKind kind) {
  Cache c;
  c.kind = kind;
  c.sinks = {4};
  c.recent = {16};
  c.dense_layers = {0};
  c.lsh = {.bits = 8, .tables = 150};
  c.quest.ratio = {0.1};
  c.hybrid.bits = 1;
  c.hybrid.tail = recipe::HybridTail::none;
  return c;
}

/// Texts long enough that a policy has an index, and different ones.
std::vector<decode::Request> long_requests(const decode::Engine& target) {
  const std::string log = io::read_file(source_dir() / "recipes/demo/lighthouse-logbook.txt");
  std::vector<decode::Request> all;
  for (const size_t begin : {size_t{0}, size_t{3000}, size_t{6000}})
    all.push_back(request(target.tokenizer()->encode(log.substr(begin, 1500))));
  return all;
}

std::unique_ptr<decode::Engine> engine_of(const std::string& model, const Cache& cache) {
  return make_engine(tiny_model(model), {.max_tokens = 1024, .caches = {cache}});
}

}  // namespace

TEST_SUITE("speculate/sparse-rounds") {
  TEST_CASE("f32: greedy text of a target under a policy is that of the policy alone") {
    const auto dense = engine_of("tiny-2m", {});  // the draft, too
    const auto requests = long_requests(*dense);
    const Generated full = generate(*dense, requests, rules(40));
    for (const CacheKind kind :
         {CacheKind::streaming, CacheKind::quest, CacheKind::lsh, CacheKind::hybrid}) {
      CAPTURE(recipe::yaml_text(kind));
      const auto target = engine_of("tiny-2m", sparse(kind));
      const Generated plain = generate(*target, requests, rules(40));
      CHECK(plain.ids != full.ids);  // what is left out tells
      const auto rounds = speculate::model_rounds(*target, *dense, tree_of(kBushy));
      CHECK(generate(*target, requests, rules(40), rounds.get()).ids == plain.ids);
      CHECK(rounds->stats().accepted > 0);
      const auto look_up = speculate::lookup_rounds(*target, 3, 6);
      CHECK(generate(*target, requests, rules(40, 0.7f, 3), look_up.get()).ids ==
            generate(*target, requests, rules(40, 0.7f, 3)).ids);
    }
  }

  TEST_CASE("f32: a draft under a policy changes what is accepted, not the text") {
    const auto target = engine_of("tiny-16m", {});
    const auto requests = long_requests(*target);
    const Generated plain = generate(*target, requests, rules(40));
    for (const CacheKind kind :
         {CacheKind::streaming, CacheKind::quest, CacheKind::lsh, CacheKind::hybrid}) {
      CAPTURE(recipe::yaml_text(kind));
      const auto draft = engine_of("tiny-2m", sparse(kind));
      const auto rounds = speculate::model_rounds(*target, *draft, tree_of(kBushy));
      CHECK(generate(*target, requests, rules(40), rounds.get()).ids == plain.ids);
      CHECK(rounds->stats().accepted > 0);
    }
  }

  TEST_CASE(
      "f32: exact top-k drafts chains: all keys propose the target's own tokens, few do not") {
    const auto requests = long_requests(*engine_of("tiny-2m", {}));
    for (const double ratio : {1.0, 0.1}) {
      CAPTURE(ratio);
      recipe::Cache topk = sparse(CacheKind::topk);
      topk.topk.ratio = {ratio};
      topk.dense_layers = {};
      const auto engine =
          make_engine(tiny_model("tiny-2m"), {.max_tokens = 1024, .caches = {{}, topk}});
      const Generated plain = generate(*engine, requests, rules(40));
      const auto rounds =
          speculate::model_rounds(*engine, {*engine, {.keys = 1}}, speculate::chain_tree(4));
      CHECK(generate(*engine, requests, rules(40), rounds.get()).ids == plain.ids);
      const speculate::RoundStats& s = rounds->stats();
      CHECK((s.accepted == s.drafted) == (ratio == 1));
      CHECK(s.accepted > 0);
    }
  }

  TEST_CASE("a policy without trees is refused by name, in target and draft") {
    const auto dense = engine_of("tiny-2m", {});
    for (const CacheKind kind : {CacheKind::topk, CacheKind::oracle_sampling}) {
      const auto sparse_one = engine_of("tiny-2m", sparse(kind));
      const std::string says = "cache.kind: is " + recipe::yaml_text(kind) +
                               ", which does not support token trees, in tiny-2m";
      const auto tree = tree_of({2, 0, 0});
      CHECK_THROWS_WITH_AS((void)speculate::model_rounds(*sparse_one, *dense, tree), says.c_str(),
                           Error);
      CHECK_THROWS_WITH_AS((void)speculate::model_rounds(*dense, *sparse_one, tree), says.c_str(),
                           Error);
      CHECK_THROWS_WITH_AS((void)speculate::lookup_rounds(*sparse_one, 3, 6), says.c_str(), Error);
    }
  }
}
