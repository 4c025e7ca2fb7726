#include <doctest/doctest.h>

#include "decode/state.h"
#include "error_text.h"
#include "generate_runs.h"
#include "io/file.h"
#include "resident_file.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using decode::Request;

namespace {

struct Case {
  std::string model;
  recipe::Cache cache;
};
const Case kCases[] = {{"llama-3.1", {}},
                       {"llama-3.1", streaming(4, 16)},
                       {"llama-3.1", streaming(4, 40, true)},
                       {"qwen2-tied", streaming(0, 1)},
                       {"llama-3.1", snapkv(50, 8)},
                       {"qwen3-tied", snapkv(60, 32)},
                       {"llama-3.1", retrieval(40, 8)},
                       {"qwen3-tied", retrieval(48, 4)},
                       {"qwen3-tied", {}},
                       {"qwen2-layer-types", {}},
                       {"qwen2-layer-types", streaming(4, 16)},
                       {"granite", retrieval(48, 4)},
                       {"olmo2", snapkv(50, 8)},
                       {"smollm3", streaming(4, 40, true)},
                       {"phi3", {}},
                       {"mistral-window", {}}};

decode::SavedState reopen(const std::filesystem::path& path, const Engine& engine) {
  return decode::open_state(path, engine.files(), engine.cache().geometry().dtype);
}

/// Greedy ids after a prefix in the cache, without new tokens.
Ids continue_text(Engine& engine, int slot, const Ids& tokens) {
  Request r;
  r.prefix_slot = slot;
  r.prefix = tokens;
  decode::GenerateSpec spec;
  spec.max_tokens = 12;
  return generate(engine, {r}, spec).ids[0];
}

}  // namespace

TEST_SUITE("decode/state") {
  TEST_CASE(
      "f32: a restored state goes on bit for bit, under every policy and at every page's end") {
    const TemporaryFolder folder;
    for (const Case& c : kCases)
      for (const int length : {1, 2, 64, 65, 129, 191, 192, 300}) {
        CAPTURE(c.model);
        CAPTURE(static_cast<int>(c.cache.recent));
        CAPTURE(length);
        const auto first = make_engine(small_model(c.model), {.caches = {c.cache}});
        const Ids ids = random_ids(*first, length, 1), after = random_ids(*first, 24, 2);
        const int saved = first->cache().create();
        prefill(*first, saved, ids);
        decode::save_state(folder / "state", *first, saved, ids);

        const auto second = make_engine(small_model(c.model), {.caches = {c.cache}});
        prefill(*second, second->cache().create(),
                random_ids(*second, 100, 3));  // other pages, used ones
        const decode::SavedState state = reopen(folder / "state", *second);
        CHECK(state.tokens == ids);
        const int slot = decode::restore_state(state, *second, 0);
        CHECK(second->cache().length(slot) == length);
        CHECK(live_ranges(second->cache(), slot) == live_ranges(first->cache(), saved));
        CHECK(committed_bytes(second->cache(), slot) == committed_bytes(first->cache(), saved));
        CHECK(continue_text(*second, slot, ids) == continue_text(*first, saved, ids));
        CHECK(same(extend_each(*second, slot, after), extend_each(*first, saved, after)));
      }
  }

  TEST_CASE("f32: continuing without new tokens equals generating from the prompt") {
    const TemporaryFolder folder;
    for (const Case& c : kCases)
      for (const int length : {2, 64, 200}) {
        CAPTURE(c.model);
        CAPTURE(length);
        const auto engine = make_engine(small_model(c.model), {.caches = {c.cache}});
        const Ids ids = random_ids(*engine, length, 4);
        const int saved = engine->cache().create();
        const decode::SeqTokens open_end[] = {{saved, ids, false}};  // saved before any cut
        engine->prefill(open_end, {});
        decode::save_state(folder / "state", *engine, saved, ids);
        const int slot = decode::restore_state(reopen(folder / "state", *engine), *engine, 0);
        decode::GenerateSpec spec;
        spec.max_tokens = 12;
        CHECK(continue_text(*engine, slot, ids) == generate(*engine, {request(ids)}, spec).ids[0]);
      }
  }

  TEST_CASE("a restored state is a new question's prefix: dense over it, as over the text itself") {
    const TemporaryFolder folder;
    const auto engine = make_engine(small_model("llama-3.1"));
    const Ids ids = random_ids(*engine, 250, 5);
    const int saved = engine->cache().create();
    prefill(*engine, saved, std::span(ids).first(150));
    decode::save_state(folder / "state", *engine, saved, std::span(ids).first(150));
    const int slot = decode::restore_state(reopen(folder / "state", *engine), *engine, 0);
    const int plain = engine->cache().create();
    CHECK(same(prefill(*engine, slot, std::span(ids).subspan(150)), prefill(*engine, plain, ids)));
  }

  TEST_CASE(
      "a cut state cannot go on under a policy that needs more, and the attempt costs nothing") {
    const TemporaryFolder folder;
    const auto engine = make_engine(
        small_model("llama-3.1"),
        {.caches = {streaming(4, 16), {}, streaming(4, 200), streaming(4, 8), streaming(100, 16)}});
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 300, 6);
    const int saved = cache.create(0);
    prefill(*engine, saved, ids);
    decode::save_state(folder / "state", *engine, saved, ids);
    const decode::SavedState state = reopen(folder / "state", *engine);
    const int pages = cache.store().free_pages();
    for (const int policy : {1, 2, 4}) {
      CAPTURE(policy);
      CHECK(input_error_text([&] {
              decode::restore_state(state, *engine, policy);
            }).find("lacks token") != std::string::npos);
      CHECK(cache.store().free_pages() == pages);
    }
    const int slot = decode::restore_state(state, *engine, 3);
    CHECK(extend(*engine, slot, std::span(ids).first(1)).size() == 384);
    cache.release(slot);
    for (int i = 0; i < 3; ++i) cache.create();  // no place was lost either
  }

  TEST_CASE("a flipped bit anywhere in a state's data is refused, under every policy") {
    const TemporaryFolder folder;
    for (const Case& c : {kCases[0], kCases[4]}) {
      const auto engine = make_engine(small_model(c.model), {.caches = {c.cache}});
      const Ids ids = random_ids(*engine, 70, 1);
      const int slot = engine->cache().create();
      prefill(*engine, slot, ids);
      decode::save_state(folder / "state", *engine, slot, ids);
      engine->cache().release(slot);
      const std::string whole = io::read_file(folder / "state");
      const size_t n_data = io::Safetensors::open(folder / "state").data_bytes();
      REQUIRE(n_data > 1000);
      for (size_t i = 0; i < 40; ++i) {
        std::string spoilt = whole;
        const size_t at = whole.size() - n_data + i * (n_data - 1) / 39;
        spoilt[at] = static_cast<char>(spoilt[at] ^ (1 << (i % 8)));
        folder.write("spoilt", spoilt);
        CAPTURE(at);
        const std::string text = input_error_text([&] {
          decode::restore_state(reopen(folder / "spoilt", *engine), *engine,
                                engine->cache().all_readers());
        });
        CHECK(text.find(" is damaged: bytes ") != std::string::npos);
      }
      // Of versions that wrote none.
      const size_t key = whole.find("crc32.blocks");
      REQUIRE(key != std::string::npos);
      folder.write("old", std::string(whole).replace(key, 5, "other"));
      CHECK_NOTHROW(decode::restore_state(reopen(folder / "old", *engine), *engine,
                                          engine->cache().all_readers()));
    }
  }

  TEST_CASE("keys with the short RoPE factors are not continued with the long ones") {
    const TemporaryFolder folder;
    const auto within = make_engine(small_model("phi3"), {.max_tokens = 32}),
               beyond = make_engine(small_model("phi3"), {.max_tokens = 33});
    CHECK(within->rope_factors() == "short");
    CHECK(beyond->rope_factors() == "long");
    const Ids ids = random_ids(*within, 20, 7);
    const int saved = within->cache().create();
    prefill(*within, saved, ids);
    decode::save_state(folder / "state", *within, saved, ids);
    const decode::SavedState state = reopen(folder / "state", *beyond);
    CHECK_NOTHROW(decode::restore_state(state, *within, 0));
    CHECK(input_error_text([&] { decode::restore_state(state, *beyond, 0); }) ==
          (folder / "state").string() +
              ": holds keys with the 'short' RoPE factors of phi3, but this run has the long ones");
  }

  TEST_CASE("a state file that has become shorter since it was opened is an error of input") {
    const TemporaryFolder folder;
    const auto engine = make_engine(small_model("llama-3.1"));
    const Ids ids = random_ids(*engine, 300, 7);
    const int saved = engine->cache().create();
    prefill(*engine, saved, ids);
    decode::save_state(folder / "state", *engine, saved, ids);
    const decode::SavedState state = reopen(folder / "state", *engine);
    CHECK(resident_bytes_of(folder / "state") == 0);
    const size_t size = std::filesystem::file_size(folder / "state");
    std::filesystem::resize_file(folder / "state", 0);
    const int pages = engine->cache().store().free_pages();
    const std::string text = input_error_text([&] { decode::restore_state(state, *engine, 0); });
    CHECK(text.starts_with((folder / "state").string() + ": was truncated during the run: byte "));
    CHECK(text.ends_with(" of " + std::to_string(size) + " is missing"));
    CHECK(engine->cache().store().free_pages() == pages);
  }

  TEST_CASE("a state larger than the cache is an error of kind memory, and costs nothing") {
    const TemporaryFolder folder;
    const auto engine = make_engine(small_model("llama-3.1"));
    const Ids ids = random_ids(*engine, 300, 7);
    const int saved = engine->cache().create();
    prefill(*engine, saved, ids);
    decode::save_state(folder / "state", *engine, saved, ids);
    const auto small = make_engine(small_model("llama-3.1"), {.max_seqs = 1, .total_tokens = 128});
    const decode::SavedState state = reopen(folder / "state", *small);
    kv::Cache& cache = small->cache();
    for (int i = 0; i < 2; ++i) {
      try {
        decode::restore_state(state, *small, 0);
        FAIL("nothing thrown");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::memory);
        CHECK(std::string(e.what()).find("pages") != std::string::npos);
      }
      CHECK(cache.store().free_pages() == 2);
    }
  }

  TEST_CASE("bf16 states keep their bits too") {
    const TemporaryFolder folder;
    const auto engine = make_engine(small_model("llama-3.1"), {.compute = DType::bf16});
    const Ids ids = random_ids(*engine, 100, 8), after = random_ids(*engine, 10, 9);
    const int saved = engine->cache().create();
    prefill(*engine, saved, ids);
    decode::save_state(folder / "state", *engine, saved, ids);
    const int slot = decode::restore_state(reopen(folder / "state", *engine), *engine, 0);
    CHECK(committed_bytes(engine->cache(), slot) == committed_bytes(engine->cache(), saved));
    CHECK(same(extend_each(*engine, slot, after), extend_each(*engine, saved, after)));
  }
}
