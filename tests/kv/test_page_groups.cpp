// Models with windows on some layers: their keys go, those of other layers stay, and texts are as
// if nothing had gone.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "decode/state.h"
#include "error_text.h"
#include "io/file.h"
#include "kv/page_groups.h"
#include "rounds_testing.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

constexpr int kWindow = 24, kMaxTokens = 512;
/// Layers 1, 2 and 4 of 5 have the window.
const std::filesystem::path kMixed = small_model("qwen2-layer-types");

/// The weights of mistral-window under another pattern.
std::filesystem::path mixed_mistral(const TemporaryFolder& folder) {
  const auto from = small_model("mistral-window");
  std::filesystem::copy(from, folder.path());
  nlohmann::json config = nlohmann::json::parse(io::read_file(from / "config.json"));
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  config["sliding_window"] = kWindow;
  folder.write("config.json", config.dump());
  return folder.path();
}

/// Room for few rows beside a window.
Setup narrow(std::vector<recipe::Cache> caches = {{}}) {
  return {.chunk = 100, .max_tokens = kMaxTokens, .caches = std::move(caches), .logit_rows = 8};
}

/// A policy that every token is a sink for: who reads a sequence by it, too, keeps all keys.
recipe::Cache keeps_all() { return streaming(kMaxTokens, 1); }

int used_pages(const kv::Cache& cache, int layer) {
  const kv::PagedStore& store = cache.whole_store(layer);
  return store.spec().n_pages - store.free_pages();
}

/// Bytes of keys and values in pages that sequences have.
double bytes_in_use(const kv::Cache& cache) {
  double bytes = 0;
  for (int layer = 0; layer < cache.geometry().n_layers; ++layer)
    bytes += used_pages(cache, layer) * kPageTokens * cache.geometry().token_bytes();
  return bytes;
}

/// Pages that one sequence of n tokens needs: of a window from the page on where it begins.
int pages_of(int n, int window, int margin) {
  const int all = (n + kPageTokens - 1) / kPageTokens;
  return window == 0 ? all : all - std::max(0, n - margin - window) / kPageTokens;
}

/// A step of one token under the first policy; its logits.
Row step(Engine& engine, int slot, int32_t id) {
  const kv::SeqRows rows[] = {{slot, 1, true}};
  const kv::Step laid_out = engine.cache().begin({.rows = rows, .reading = kv::Reading{.keys = 0}});
  engine.model().forward(std::span(&id, 1), laid_out, engine.cache());
  const int32_t row = 0;
  Row logits = row_of(engine.on_host(engine.logits(std::span(&row, 1))), 0);
  engine.cache().commit(laid_out);
  return logits;
}

std::vector<Row> steps(Engine& engine, int slot, std::span<const int32_t> ids) {
  std::vector<Row> rows;
  for (const int32_t id : ids) rows.push_back(step(engine, slot, id));
  return rows;
}

kv::Geometry geometry_with(const std::vector<int>& windows) {
  kv::Geometry g{.n_layers = static_cast<int>(windows.size()), .n_heads = 1, .n_kv_heads = 1};
  for (const int w : windows) g.layers.push_back({.window = w, .scale = {}});
  return g;
}

std::string groups_of(const std::vector<int>& windows, int max_tokens = 1 << 20) {
  return kv::page_groups_text(kv::page_groups(geometry_with(windows), max_tokens));
}

}  // namespace

TEST_SUITE("kv/page_groups") {
  TEST_CASE("layers with equal windows form a group, the one that keeps most first") {
    CHECK(groups_of({0, 0, 0}) == "0: 0, 1, 2");
    CHECK(groups_of({64, 64}) == "64: 0, 1");
    CHECK(groups_of({64, 0, 64, 0}) == "0: 1, 3; 64: 0, 2");
    CHECK(groups_of({64, 128, 64}) == "128: 1; 64: 0, 2");
    // No more than kMaxPageGroups: the last keeps the longest window of its layers.
    CHECK(groups_of({64, 0, 128, 32}) == "0: 1; 128: 0, 2, 3");
    // A sequence never reaches beyond the window.
    CHECK(groups_of({64, 0, 64}, 64) == "0: 0, 1, 2");
    CHECK(groups_of({64, 0, 64}, 65) == "0: 1; 64: 0, 2");
  }

  TEST_CASE("memory in use follows the formula at every token, and falls below that of all keys") {
    const TemporaryFolder folder;
    for (const auto& model : {kMixed, mixed_mistral(folder)}) {
      const auto engine = make_engine(model, narrow());
      kv::Cache& cache = engine->cache();
      const kv::Geometry& g = cache.geometry();
      const int margin = engine->spec().max_draft_rows;
      const Ids ids = random_ids(*engine, kMaxTokens, 1);
      const int slot = cache.create();
      const auto check = [&](int n) {
        CAPTURE(n);
        double want = 0, whole = 0;
        for (int layer = 0; layer < g.n_layers; ++layer) {
          const double page = kPageTokens * g.token_bytes();
          want += page * pages_of(n, g.window(layer), margin);
          whole += page * pages_of(n, 0, margin);
        }
        CHECK(bytes_in_use(cache) == want);
        if (n > 2 * kPageTokens + kWindow + margin) CHECK(bytes_in_use(cache) < 0.8 * whole);
      };
      prefill(*engine, slot, std::span(ids).first(250), 90);
      check(250);
      for (int n = 251; n <= kMaxTokens; ++n) {
        step(*engine, slot, ids[static_cast<size_t>(n) - 1]);
        check(n);
      }
      cache.release(slot);
      CHECK(bytes_in_use(cache) == 0);
    }
  }

  TEST_CASE("a plan has room for windows, rounds and the rows of a prefill only") {
    const auto engine = make_engine(kMixed, narrow());
    const kv::Geometry& g = engine->cache().geometry();
    const MemoryPlan& plan = engine->memory_plan();
    const auto pages = [&](const char* item, int layers) {
      return static_cast<double>(plan.find(item)->bytes) /
             (kPageTokens * g.token_bytes() / 2 * layers);
    };
    CHECK(pages("kv/k", 2) == 4 * kMaxTokens / kPageTokens + 2 * 4);
    // Each of four sequences keeps its window and twice 8 rows, all together 100 rows more.
    CHECK(pages("kv/window 24/k", 3) == 4 * (1 + 2) + 2);
    // Layer by layer all rows of a prompt are laid out at once.
    Setup layers = narrow();
    layers.order = recipe::PrefillOrder::layers;
    const MemoryPlan other =
        Engine::plan(decode::open_model(kMixed.string(), 0), engine_spec(layers));
    CHECK(static_cast<double>(other.find("kv/window 24/k")->bytes) ==
          kPageTokens * g.token_bytes() / 2 * 3 * (4 * (1 + 2) + 512 / kPageTokens));
  }

  TEST_CASE("f32: texts equal those of masks over all keys, bit for bit, under every policy") {
    const TemporaryFolder folder;
    recipe::Cache lsh;
    lsh.kind = recipe::CacheKind::lsh;
    lsh.recent = {16};
    lsh.dense_layers = {};
    for (const auto& model : {kMixed, mixed_mistral(folder)})
      for (const recipe::Cache& policy :
           {recipe::Cache{}, snapkv(40, 8), retrieval(40, 8), streaming(4, 100), lsh}) {
        CAPTURE(recipe::yaml_text(policy.kind));
        const auto groups = make_engine(model, narrow({policy})),
                   masks = make_engine(model, narrow({policy, keeps_all()}));
        const Ids ids = random_ids(*groups, 300, 2), after = random_ids(*groups, 150, 3);
        const int slot = groups->cache().create(),
                  whole = masks->cache().create(masks->cache().all_readers());
        CHECK(same(prefill(*groups, slot, ids), prefill(*masks, whole, ids)));
        CHECK(same(steps(*groups, slot, after), steps(*masks, whole, after)));
        const int windowed = groups->cache().geometry().window(0) > 0 ? 0 : 1;
        const int of_sinks = policy.kind == recipe::CacheKind::streaming ? 1 : 0;
        CHECK(used_pages(groups->cache(), windowed) == 2 + of_sinks);
        CHECK(used_pages(masks->cache(), windowed) == 8);
      }
  }

  TEST_CASE("f32: forks share the windows, and go on as plain runs however steps interleave") {
    const auto engine = make_engine(kMixed, narrow());
    kv::Cache& cache = engine->cache();
    for (const int prefix : {20, 150, 192, 200}) {
      CAPTURE(prefix);
      const Ids ids = random_ids(*engine, prefix, 4), left = random_ids(*engine, 100, 5),
                right = random_ids(*engine, 100, 6);
      const int root = cache.create();
      prefill(*engine, root, ids);
      const double before = bytes_in_use(cache);
      const int a = cache.fork(root, 0), b = cache.fork(root, 0);
      CHECK(bytes_in_use(cache) == before);
      std::vector<Row> of_left, of_right;
      for (size_t i = 0; i < left.size(); ++i) {
        of_left.push_back(step(*engine, a, left[i]));
        of_right.push_back(step(*engine, b, right[i]));
      }
      const std::vector<Row> of_root = steps(*engine, root, left);
      for (const int slot : {root, a, b}) cache.release(slot);
      CHECK(bytes_in_use(cache) == 0);
      const int plain = cache.create();
      prefill(*engine, plain, ids);
      const std::vector<Row> want = steps(*engine, plain, left);
      CHECK(same(of_left, want));
      CHECK(same(of_root, want));
      cache.release(plain);
      const int other = cache.create();
      prefill(*engine, other, ids);
      CHECK(same(of_right, steps(*engine, other, right)));
      cache.release(other);
    }
  }

  TEST_CASE("a sequence goes back by a round; what needs an evicted token is an error") {
    const auto engine = make_engine(kMixed, narrow());
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 400, 7), after = random_ids(*engine, 70, 8);
    // At the end of a page the window's first page goes.
    for (const int n : {2 * kPageTokens + kWindow + 8, 300, 320 + kWindow}) {
      CAPTURE(n);
      const int slot = cache.create(), plain = cache.create();
      prefill(*engine, slot, std::span(ids).first(static_cast<size_t>(n)));
      prefill(*engine, plain, std::span(ids).first(static_cast<size_t>(n) - 8));
      cache.truncate(slot, n - 8);
      CHECK(same(steps(*engine, slot, after), steps(*engine, plain, after)));
      CHECK(input_error_text([&] { cache.truncate(slot, 30); }) ==
            "kv cache: cannot roll back to 30 tokens: the full policy evicted token 7");
      cache.release(slot);
      cache.release(plain);
    }
  }

  TEST_CASE(
      "greedy text of rounds is the target's: chains, trees, a draft model and the model itself") {
    const auto target = make_engine(kMixed, narrow({{}, snapkv(40, 8)})),
               draft = make_engine(kMixed, narrow());
    check_rounds(*target, *draft, 150);
  }

  TEST_CASE("keys in host memory are those of layers without a window") {
    recipe::Cache host;
    host.place = recipe::CachePlace::host;
    for (const recipe::Attend attend : {recipe::Attend::cpu, recipe::Attend::gpu}) {
      host.attend = attend;
      const auto split = make_engine(kMixed, narrow({host})), one = make_engine(kMixed, narrow());
      const MemoryPlan& plan = split->memory_plan();
      CHECK(plan.find("kv/k") == nullptr);
      CHECK(plan.find("kv/host/k")->bytes == one->memory_plan().find("kv/k")->bytes);
      const Ids ids = random_ids(*one, 300, 10), after = random_ids(*one, 100, 11);
      const int a = split->cache().create(), b = one->cache().create();
      double worst = max_difference(prefill(*split, a, ids), prefill(*one, b, ids));
      const auto got = steps(*split, a, after), want = steps(*one, b, after);
      double largest = 0;  // sums in another order differ by some bits of it
      for (size_t i = 0; i < want.size(); ++i) {
        worst = worse(worst, max_difference(got[i], want[i]));
        for (const float logit : want[i]) largest = std::max(largest, std::abs(double{logit}));
      }
      CAPTURE(largest);
      CHECK(worst <= 1e-5 * largest);
      CHECK(used_pages(split->cache(), 1) == used_pages(one->cache(), 1));
    }
  }

  TEST_CASE("a saved state has the pages that are alive, by group; one with all pages is read") {
    const TemporaryFolder folder;
    const auto groups = make_engine(kMixed, narrow()),
               masks = make_engine(kMixed, narrow({{}, keeps_all()}));
    const Ids ids = random_ids(*groups, 300, 12), after = random_ids(*groups, 100, 13);
    const int saved = groups->cache().create(),
              whole = masks->cache().create(masks->cache().all_readers());
    prefill(*groups, saved, ids);
    prefill(*masks, whole, ids);
    decode::save_state(folder / "groups", *groups, saved, ids);
    decode::save_state(folder / "whole", *masks, whole, ids);
    const std::vector<Row> want = steps(*groups, saved, after);
    const auto open = [&](const char* name) {
      return decode::open_state(folder / name, groups->files(), DType::f32);
    };
    const auto tensors = open("groups").file;
    CHECK(tensors.metadata().at("page_groups") == "0: 0, 3; 24: 1, 2, 4");
    CHECK(tensors.find("k.0.0") != nullptr);
    CHECK(tensors.find("k.1.3") == nullptr);
    CHECK(tensors.find("v.4.4") != nullptr);
    // Versions without page groups wrote such a file.
    std::string old = io::read_file(folder / "whole");
    old.replace(old.find("tandem.state/2"), 14, "tandem.state/1");
    folder.write("old", old);
    for (const char* name : {"groups", "whole", "old"}) {
      CAPTURE(name);
      const auto other = make_engine(kMixed, narrow());
      const int slot = decode::restore_state(open(name), *other, 0);
      CHECK(used_pages(other->cache(), 0) == 5);
      CHECK(used_pages(other->cache(), 1) == 1);
      CHECK(same(steps(*other, slot, after), want));
    }
    std::string wrong = io::read_file(folder / "groups");
    wrong.replace(wrong.find("24: 1, 2, 4"), 11, "24: 1, 3, 4");
    folder.write("wrong", wrong);
    CHECK(input_error_text([&] {
            open("wrong");
          }).find("lists page groups '0: 0, 3; 24: 1, 3, 4', expected '0: 0, 3; 24: 1, 2, 4'") !=
          std::string::npos);
  }
}
