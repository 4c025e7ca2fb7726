// Models whose weights other programs quantized, against folders with the decoded numbers.
#include <doctest/doctest.h>

#include "base/parallel.h"
#include "error_text.h"
#include "generate_runs.h"
#include "model/spec/weight_formats.h"
#include "quantized_model.h"
#include "ranks/group_comm.h"
#include "ranks/rank_threads.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

struct Way {
  Stored stored;
  const char* formats;  // in memory, without those of numbers
};

constexpr Way kWays[] = {{Stored::awq, "i4 g32 f16 integer"},
                         {Stored::gptq4, "i4 g32 f16 integer"},
                         {Stored::gptq8, "i8 g32 f16 integer"},
                         {Stored::gptq_act_order, ""},
                         {Stored::words4, "i4 g32 f16 integer"},
                         {Stored::words8, "i8 g32 f16 integer"},
                         {Stored::int8, "i8 f16"},
                         {Stored::fp8, "fp8 f32, fp8 g96 f32"}};

/// Logits after a prompt, in f32.
Row logits_of(decode::ModelFiles files, ranks::Group* group = nullptr) {
  decode::EngineSpec spec = engine_spec({});
  if (group != nullptr) {
    spec.n_ranks = group->size();
    spec.comm = std::make_shared<ranks::HostComm>(
        std::shared_ptr<ranks::Group>(group, [](ranks::Group*) {}));
  }
  decode::Engine engine(std::move(files), spec);
  return prefill(engine, engine.cache().create(), random_ids(engine, 40, 3), 40);
}

double largest(const Row& row) {
  double most = 0;
  for (const float x : row) most = std::max(most, std::abs(double{x}));
  return most;
}

struct Folders {
  TemporaryFolder folder;
  std::string coded = (folder / "coded").string(), decoded = (folder / "decoded").string();

  explicit Folders(Stored like) {
    write_quantized_model(coded, like, false);
    write_quantized_model(decoded, like, true);
  }
};

}  // namespace

TEST_SUITE("decode/quantized-folders") {
  TEST_CASE("a quantized folder has the logits of the decoded one") {
    for (const auto& [stored, formats] : kWays) {
      CAPTURE(static_cast<int>(stored));
      const Folders f(stored);
      const Row want = logits_of(decode::open_model(f.decoded, 0));
      const double size = largest(want);
      CHECK(size > 0.1);
      CHECK(logits_of(decode::open_model(f.coded, 0)) == want);
      for (const bool int8_inputs : {false, true}) {
        decode::ModelFiles files = decode::open_model(f.coded, 0);
        decode::keep_codes(files, {}, DType::f32, int8_inputs);
        CHECK((files.config.formats ? model::formats_text(files.config, DType::f32) : "") ==
              formats);
        if (files.config.formats) CHECK(files.config.formats->coded.size() == 12);
        CHECK(max_difference(logits_of(std::move(files)), want) <=
              (int8_inputs ? 3e-2 : 2e-6) * size);
      }
    }
  }

  TEST_CASE("ranks share a quantized folder, where they cut between groups") {
    for (const auto& [stored, formats] : kWays) {
      CAPTURE(static_cast<int>(stored));
      const Folders f(stored);
      const Row want = logits_of(decode::open_model(f.decoded, 0));
      const auto results = run_ranks({.size = 2}, [&](ranks::Group& group) {
        set_threads(1);
        decode::ModelFiles files = decode::open_model(f.coded, 0);
        decode::take_shard(files, group.rank(), group.size());
        decode::keep_codes(files, {}, DType::f32, false);
        if (max_difference(logits_of(std::move(files), &group), want) > 1e-5 * largest(want))
          throw input_error("rank", "other logits");
      });
      const bool cuts = stored == Stored::fp8;  // 128 inputs of o_proj in blocks of 96
      for (const RankResult& r : results)
        if (cuts)
          CHECK(r.text.find("cuts model.layers.0.self_attn.o_proj.weight (fp8 g96 f32) inside a "
                            "group of 96 inputs") != std::string::npos);
        else
          CHECK(r.text == "");
    }
  }

  TEST_CASE("a GPU keeps codes in memory, but not of weights that more than products read") {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    const Folders f(Stored::awq);
    decode::ModelFiles files = decode::open_model(f.coded, 0);
    const auto bytes = [&](const model::WeightPlaces& places, const std::string& matrix) {
      MemoryPlan plan;
      model::Weights::plan(files.config, DType::bf16, plan, places);
      const PlanItem* const item = plan.find("weights/layers.0." + matrix);
      REQUIRE(item != nullptr);
      return item->bytes;
    };
    const model::WeightPlaces all{.device = kGpu}, channels{.device = kGpu, .by_channel = true},
        divided{.device = kGpu, .by_channel = true, .set_channels = 64},
        rewritten{.device = kGpu, .rewritten = true};
    const size_t part = bytes(divided, "gate_up"), o = bytes(all, "wo"),
                 gate_up = bytes(all, "gate_up"), down = bytes(all, "w_down");
    decode::keep_codes(files, kGpu, DType::f32, false);
    CHECK(files.config.formats == nullptr);  // products in f32 take none
    decode::keep_codes(files, kGpu, DType::bf16, false);
    REQUIRE(files.config.formats != nullptr);
    CHECK(bytes(all, "wo") * 2 < o);
    CHECK(bytes(all, "gate_up") < gate_up);  // its 64 inputs pad tiles of 128
    CHECK(bytes(all, "w_down") * 2 < down);
    CHECK(bytes(channels, "wo") * 2 < o);
    CHECK(bytes(channels, "gate_up") == bytes(all, "gate_up"));
    CHECK(bytes(channels, "w_down") < down);  // its 64 outputs pad tiles of 128
    CHECK(bytes(divided, "gate_up") == part);
    CHECK(bytes(rewritten, "wo") == o);
    CHECK(bytes(rewritten, "gate_up") == gate_up);
  }

  TEST_CASE("folders that differ in one code have other fingerprints") {
    const Folders f(Stored::awq);
    const std::string before = decode::open_model(f.coded, 0).fingerprint;
    const auto path = std::filesystem::path(f.coded) / "model.safetensors";
    std::string file = io::read_file(path);
    const io::Safetensors parsed = io::Safetensors::parse(as_bytes(file), "file");
    const io::TensorEntry& entry = *parsed.find("model.layers.0.mlp.up_proj.qweight");
    const size_t middle = file.size() - parsed.data_bytes() + (entry.begin + entry.end) / 2;
    file[middle] = static_cast<char>(file[middle] ^ 1);
    std::ofstream(path, std::ios::binary) << file;
    CHECK(decode::open_model(f.coded, 0).fingerprint != before);
  }
}
