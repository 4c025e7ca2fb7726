#include "kv/read_keys.h"

#include <doctest/doctest.h>

#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;

namespace {

kv::KeyList list_of(const Ids& sinks, const Ids& ids) {
  kv::KeyList list;
  for (const Ids* part : {&sinks, &ids})
    list.segments.push_back({part->data(), static_cast<int>(part->size()), nullptr, nullptr});
  return list;
}

}  // namespace

TEST_SUITE("kv/read_keys") {
  TEST_CASE("keys count once for each sequence and KV head, until they are forgotten") {
    const kv::ReadKeys::Spec spec{.max_seqs = 2, .n_kv_heads = 3, .max_tokens = 200};
    MemoryPlan plan;
    kv::ReadKeys::plan(spec, plan);
    CHECK(plan.find("workspace/read keys")->bytes == 2 * 3 * 4 * sizeof(uint64_t));
    Arena arena(std::move(plan));
    kv::ReadKeys read(spec, arena);
    const Ids sinks = {0, 1}, some = {5, 63, 64, 127, 199}, others = {5, 62, 64, 198, 199};
    for (int round = 0; round < 2; ++round) {
      read.clear(2);
      CHECK(read.note(1, 2, list_of(sinks, some)) == 7);
      CHECK(read.note(1, 2, list_of(sinks, some)) == 0);
      CHECK(read.note(1, 2, list_of(sinks, others)) == 2);
      CHECK(read.note(0, 2, list_of(sinks, others)) == 7);
      CHECK(read.note(1, 1, list_of({}, {})) == 0);
      CHECK(read.note(1, 1, list_of({}, some)) == 5);
    }
  }

  TEST_CASE("a tree's rows read a key once, and rows of a text one by one") {
    recipe::Cache cache = sparse_cache(recipe::CacheKind::hybrid, 4, 16);
    cache.hybrid.exact = {1.0};
    cache.hybrid.tail = recipe::HybridTail::none;
    PolicyRig rig({.max_rows = 512}, {cache}, cone_data(32));
    const int base = 300, n_layers = PolicyRig::Shape{}.geometry.n_layers;
    const double token_bytes = PolicyRig::Shape{}.geometry.token_bytes();
    const int slot = rig.sequence(tokens(0, base));
    const std::vector<int> parent = {-1, 0, 0, 1, 1, 2, -1};
    const kv::SeqRows rows[] = {{slot, static_cast<int>(parent.size())}};
    const kv::Tree trees[] = {{parent}};
    (void)rig.attend(rig.cache.begin({.rows = rows, .trees = trees}), tokens(700, rows[0].n_rows));
    const kv::KeyUsage tree = rig.cache.usage(0);
    // All heads read all keys.
    CHECK(tree.key_bytes == n_layers * token_bytes * (base + rows[0].n_rows));
    CHECK(tree.queries == 7 * n_layers * 6);
    (void)rig.extend(slot, tokens(800, 1));
    const kv::KeyUsage row = rig.cache.usage(0).since(tree);
    // Each of three heads of a group on its own, but for the range.
    const int indexed = base - 16;
    CHECK(row.key_bytes == n_layers * token_bytes * (3 * indexed + base + 1 - indexed));
  }
}
