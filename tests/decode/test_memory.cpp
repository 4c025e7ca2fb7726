#include <doctest/doctest.h>

#include <set>

#include "engine_runs.h"
#include "kv/cache.h"
#include "resident_file.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Memory that the plan states without allocating it.
bool is_held_elsewhere(const PlanItem& item) { return item.name.starts_with("process/"); }

/// Whether a buffer is allocated: taking it a second time is a bug, and reported as one.
bool is_taken(Arena& arena, const std::string& name) {
  try {
    arena.take(name);
    return false;
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::internal);
    return true;
  }
}

}  // namespace

TEST_SUITE("decode/memory") {
  TEST_CASE(
      "an engine takes every planned buffer of a run, and keeps none that only loading needs") {
    for (const std::string name :
         {"llama-3.1", "qwen2-untied-sharded", "llama-3.2-tied", "qwen3-untied-sharded"})
      for (const bool reposition : {false, true}) {
        CAPTURE(name);
        CAPTURE(reposition);
        const Setup setup{.chunk = 64,
                          .max_seqs = 3,
                          .max_tokens = 256,
                          .caches = {{}, streaming(4, 16, reposition)}};
        const decode::EngineSpec spec = engine_spec(setup);
        decode::ModelFiles files = decode::open_model(small_model(name).string(), 0);
        Arena arena(decode::Engine::plan(files, spec));
        // The parts of an engine, over an arena that can be asked.
        const model::Transformer transformer(files.config,
                                             {.dtype = spec.compute,
                                              .max_rows = spec.prefill_chunk,
                                              .max_logit_rows = spec.max_logit_rows,
                                              .max_position = spec.max_tokens},
                                             std::move(files.source), arena);
        const kv::Cache cache({.geometry = model::geometry_of(files.config, spec.compute),
                               .max_seqs = spec.max_seqs,
                               .max_tokens = spec.max_tokens,
                               .total_tokens = spec.total_tokens,
                               .max_rows = spec.prefill_chunk,
                               .policies = spec.caches},
                              arena, transformer.ropes());
        const decode::Sampler sampler({.max_seqs = spec.max_seqs,
                                       .max_tokens = spec.max_tokens,
                                       .vocab = files.config.vocab_size},
                                      arena);
        (void)arena.take("activations/logits");  // the engine's own
        size_t n_checked = 0;
        for (const PlanItem& item : arena.plan().items()) {
          if (is_held_elsewhere(item)) continue;
          CAPTURE(item.name);
          const bool stays = item.lifetime == Lifetime::run;
          CHECK(is_taken(arena, item.name) == (stays && item.bytes > 0));
          ++n_checked;
        }
        CHECK(n_checked > 10);
      }
  }

  TEST_CASE(
      "the plan's peak is what its items add up to, and what a run keeps resident fits into it") {
    const Setup setup{.chunk = 512, .max_seqs = 2, .max_tokens = 2048};
    const decode::EngineSpec spec = engine_spec(setup);
    const size_t planned =
        decode::Engine::plan(decode::open_model(tiny_model("tiny-2m").string(), 0), spec).peak({});
    const size_t before = resident_bytes();
    const auto engine = make_engine(tiny_model("tiny-2m"), setup);
    for (int i = 0; i < 2; ++i) {
      const int slot = engine->cache().create();
      prefill(*engine, slot, random_ids(*engine, 2000, static_cast<uint64_t>(i)));
      extend(*engine, slot, random_ids(*engine, 1, 3));
    }
    const size_t grown = resident_bytes() - before;
    CHECK(resident_bytes_of(tiny_model("tiny-2m") / "model.safetensors") == 0);
    const size_t process = engine->memory_plan().find("process/program and tokenizer")->bytes;
    MESSAGE("planned beyond the process " << format_bytes(planned - process) << ", grown by "
                                          << format_bytes(grown));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    MESSAGE("skipped: sanitizers hold memory of their own");
    return;
#endif
    // Library state that no plan can name: oneDNN's generated code and thread stacks, 8 MiB at most
    // on top of 2 % for page rounding.
    CHECK(static_cast<double>(grown) <= 1.02 * static_cast<double>(planned - process) + 0x1p23);
  }
}
