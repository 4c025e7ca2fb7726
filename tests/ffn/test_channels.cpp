#include <doctest/doctest.h>

#include <set>

#include "decode/state.h"
#include "engine_runs.h"
#include "error_text.h"
#include "ffn/policy_rig.h"
#include "kernels/cpu_table.h"
#include "model/spec/work.h"
#include "speculate/plan/chain_tokens.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

TEST_SUITE("ffn/channels") {
  TEST_CASE("the union of lists of the sequences that have rows, in every layer") {
    constexpr int kLayers = 3, kChannels = 97, kMost = 40, kSlots = 5;
    PhiloxStream draw(7);
    std::vector<int32_t> lists(kSlots * kLayers * kMost), counts(kSlots * kLayers);
    std::vector<std::set<int32_t>> sets(counts.size());
    for (size_t i = 0; i < sets.size(); ++i) {
      counts[i] = static_cast<int32_t>(draw.below(kMost + 1));
      while (std::ssize(sets[i]) < counts[i])
        sets[i].insert(static_cast<int32_t>(draw.below(kChannels)));
      std::ranges::copy(sets[i], lists.begin() + static_cast<long>(i) * kMost);
    }
    const std::vector<int32_t> slot = {4, 1, 2}, row_begin = {0, 2, 2, 3};
    std::vector<int32_t> ids(kLayers * kChannels), n(kLayers);
    std::vector<int64_t> counted(2 * kLayers, 5);
    const UniteChannelsParams params{.ids = ids.data(),
                                     .n = n.data(),
                                     .counted = counted.data(),
                                     .lists = lists.data(),
                                     .counts = counts.data(),
                                     .slot_stride = kLayers * kMost,
                                     .list_stride = kMost,
                                     .count_stride = kLayers,
                                     .slot = slot.data(),
                                     .row_begin = row_begin.data(),
                                     .n_seqs = 3,
                                     .n_lists = kLayers,
                                     .n_channels = kChannels};
    cpu_table().unite_channels(params, {0, kLayers});
    for (size_t l = 0; l < kLayers; ++l) {
      std::set<int32_t> all = sets[4 * kLayers + l];
      all.insert(sets[2 * kLayers + l].begin(), sets[2 * kLayers + l].end());
      const int32_t* from = ids.data() + l * kChannels;
      CHECK(std::vector<int32_t>(from, from + n[l]) ==
            std::vector<int32_t>(all.begin(), all.end()));
      CHECK(counted[2 * l] == 6);
      CHECK(counted[2 * l + 1] == 5 + n[l]);
    }
  }

  TEST_CASE("densities and parameters a token as Sirius has them") {
    struct Row {
      const char* model;
      double keep, coarse, fine;
    };
    // Sirius' table of densities; 8B's of Llama 3.1 is Llama 3's.
    for (const Row& row : {Row{"llama-3.1-8b", .5, .649, .766}, Row{"llama-3.1-8b", .4, .579, .719},
                           Row{"llama-2-7b", .5, .679, .786}, Row{"llama-2-13b", .5, .674, .783},
                           Row{"llama-3.1-70b", .5, .601, .734}}) {
      CAPTURE(row.model);
      const model::ModelConfig c = model::synthetic_config(row.model);
      CHECK(std::abs(model::param_density(c, row.keep, false) - row.coarse) < 5.1e-4);
      CHECK(std::abs(model::param_density(c, row.keep, true) - row.fine) < 5.3e-4);
      CHECK(model::param_density(c, 1, true) == 1);
    }
    struct Result {
      double keep;
      bool fine;
      double advance, per_token;
    };
    // Its results at k = 16; the last but three of the page, .691, does not follow its formula.
    const model::ModelConfig c = model::synthetic_config("llama-3.1-8b");
    for (const Result& r : {Result{.5, false, 15.22, .706}, Result{.5, false, 15.29, .703},
                            Result{.5, true, 15.37, .807}, Result{.5, true, 15.03, .825},
                            Result{.4, false, 14.76, .657}, Result{.4, false, 15.43, .628},
                            Result{.4, true, 15.66, .753}, Result{.4, true, 15.00, .786},
                            Result{.5, false, 14.67, .733}, Result{.5, true, 15.42, .804},
                            Result{.5, true, 15.54, .797}}) {
      CAPTURE(r.per_token);
      // The page has densities of two digits, .65 .76 .58 .72.
      const double d = std::floor(100 * model::param_density(c, r.keep, r.fine) + .5) / 100;
      const double of_page = r.fine && r.keep == .5 ? .76 : d;
      CHECK(std::abs(speculate::params_per_token(16, of_page, r.advance) - r.per_token) < 1.1e-3);
    }
  }

  TEST_CASE("f32: all channels by list are the whole model") {
    recipe::Sparse all;
    all.kind = recipe::SparseKind::griffin;
    all.keep = {1};
    for (const auto& [model, kind] :
         std::initializer_list<std::pair<std::filesystem::path, recipe::SparseKind>>{
             {tiny_model("tiny-2m"), recipe::SparseKind::griffin},
             {tiny_model("tiny-2m"), recipe::SparseKind::magnitude},
             {tiny_model("tiny-2m"), recipe::SparseKind::cats},
             {small_model("granite"), recipe::SparseKind::griffin},
             {small_model("olmo2"), recipe::SparseKind::cats}}) {
      all.kind = kind;
      const auto engine = make_engine(model, {.sparse = {all}});
      const Ids ids = random_ids(*engine, 40, 3);
      const std::span<const int32_t> after = std::span(ids).last(8);
      const Ids prompt(ids.begin(), ids.end() - 8);
      const std::vector<Row> whole = run_alone(*engine, prompt, after);
      decode::EngineSpec spec = engine->spec();
      spec.channels = {1};
      const auto listed =
          std::make_unique<decode::Engine>(decode::open_model(model.string(), 0), spec);
      const std::vector<Row> by_list = run_alone(*listed, prompt, after);
      CHECK(same(whole[0], by_list[0]));
      for (size_t i = 0; i < whole.size(); ++i) CHECK(max_difference(whole[i], by_list[i]) < 2e-4);
      CHECK_FALSE(same(whole, by_list));
    }
  }

  TEST_CASE("f32: without a policy the bits are those of an engine that has one") {
    recipe::Sparse half;
    half.kind = recipe::SparseKind::griffin;
    const auto with = make_engine(tiny_model("tiny-2m"), {.sparse = {half}});
    const auto without = make_engine(tiny_model("tiny-2m"));
    const Ids ids = random_ids(*with, 60, 4);
    const std::span<const int32_t> after = std::span(ids).last(5);
    CHECK(same(run_alone(*with, ids, after), run_alone(*without, ids, after)));
    CHECK(without->channels() == nullptr);
  }

  TEST_CASE(
      "f32: lists are the same however a prompt is divided, and steps of many rows read all") {
    recipe::Sparse half;
    half.kind = recipe::SparseKind::griffin;
    decode::EngineSpec spec = engine_spec({.sparse = {half}});
    spec.channels = {1};
    decode::Engine engine(decode::open_model(tiny_model("tiny-2m").string(), 0), spec);
    const Ids ids = random_ids(engine, 90, 5);
    const std::span<const int32_t> after = std::span(ids).last(6);
    const std::vector<Row> whole = run_alone(engine, ids, after);
    CHECK(same(whole, run_alone(engine, ids, after, 7)));
    CHECK(same(whole, run_alone(engine, ids, after, 64)));
    const auto dense = make_engine(tiny_model("tiny-2m"));
    CHECK_FALSE(same(whole[1], run_alone(*dense, ids, after)[1]));
    // 17 rows: all channels.
    const auto extended = [&](decode::Engine& e) {
      const int slot = e.cache().create();
      (void)prefill(e, slot, ids);
      const Row row = extend(e, slot, std::span(ids).first(17));
      e.cache().release(slot);
      return row;
    };
    CHECK(same(extended(engine), extended(*dense)));
  }
}
