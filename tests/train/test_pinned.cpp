// Places, first values and files of training, which runs and records of users rest on.

#include <doctest/doctest.h>

#include <map>

#include "io/file.h"
#include "pinned.h"
#include "temporary_folder.h"
#include "train/export/export_adapter.h"
#include "train/export/export_low_rank.h"
#include "train/export/export_model.h"
#include "train/low_rank_runs.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Places of each method's values in the flat buffers, and the values that it trains.
std::string flat_buffers(const std::vector<train::TrainedSet>& sets) {
  std::string text;
  for (const train::TrainedSet& set : sets) {
    each_matrix(set, [&](const train::TrainedMatrix& m) {
      text +=
          fmt::format("{} {} {} {} {} {} {} {}\n", static_cast<int>(m.part), m.offset, m.rows,
                      m.cols, m.index_offset, m.bias_offset, m.bias_size, fmt::join(m.index, ","));
      for (const train::LowRankFactors& f : m.factors)
        text +=
            fmt::format("{} {} {} {} {} {}\n", f.layer, f.first_row, f.rows, f.a, f.b, f.magnitude);
    });
    text += fmt::format("{} {} {} {} {}\n", set.norms_offset, set.norms_size, set.size,
                        set.index_size, set.first_layer());
  }
  return hash_of(text);
}

std::string hash_of_file(const std::filesystem::path& path) { return hash_of(io::read_file(path)); }

/// Plans, flat buffers, first values and exported files of each method of training.
std::vector<std::string> training(const char* name) {
  train::TrainSettings settings;
  settings.lora.rank = 4;
  settings.lora.targets = all_matrices();
  const train::TrainerSpec spec = trainer_spec(name);
  const model::ModelConfig& c = spec.config;
  const auto units = train::select_random(half_of_everything(), c);
  const std::vector<train::TrainedSet> sets = {train::full_set(c), train::scattered_set(c, 0.01, 3),
                                               train::slices_of(units, c),
                                               train::low_rank_set(c, settings.lora, true, 5)};
  const TemporaryFolder folder;
  const decode::ModelFiles files = decode::open_model(small_model(name).string(), 0);
  std::string text;
  for (const train::TrainedSet& set : sets) text += text_of(train::Trainer::plan(spec, set));
  const auto sliced = make_trainer(name, spec, sets[2]);
  train::export_adapter(folder / "s2ft", files, settings, 5, *sliced);
  const auto low_rank = make_trainer(name, spec, sets[3]);
  const std::vector<float> first = low_rank->values();
  move_factors(*low_rank, 7);
  settings.method = train::Method::dora;
  train::export_low_rank(folder / "dora", "base", settings, sets[3], c, low_rank->values());
  const auto all = make_trainer(name, spec, sets[0]);
  train::export_model(folder / "full", small_model(name), c, *files.source, sets[0], all->values(),
                      DType::f32, {});
  return {hash_of(text),
          flat_buffers(sets),
          hash_of({reinterpret_cast<const char*>(first.data()), first.size() * sizeof(float)}),
          hash_of_file(folder / "s2ft/s2ft_adapter.safetensors"),
          hash_of_file(folder / "dora/adapter_model.safetensors"),
          hash_of_file(folder / "full/model.safetensors")};
}

}  // namespace

TEST_SUITE("train/pinned") {
  TEST_CASE("plans, flat buffers, first values and files stay as they are") {
    const std::map<std::string, std::vector<std::string>> pinned = {

        {"llama-odd",
         {"29115246fb9895b8", "d3b0d0f784594bb4", "376878827a2a7201", "8285959d332b9073",
          "4551bf7a4e742e95", "6cec0431b73c1341"}},
        {"qwen2-untied-sharded",
         {"01865f3e3a4ecf7c", "1c480480b2fb72d6", "ef87d3ac1a95e638", "59ddbfac47bbff4a",
          "d33e1ad91aedec67", "10a95b2bd0ac1662"}},
        {"qwen3-odd",
         {"fccab8903ecb17a5", "2b1e7a5a184eab2a", "e80995791ee9f943", "684d468874c00172",
          "85f36ae21d767887", "d0504e43476f6e21"}},
    };
    for (const auto& [name, expected] : pinned) {
      CAPTURE(name);
      CHECK(fmt::format("{}", fmt::join(training(name.c_str()), " ")) ==
            fmt::format("{}", fmt::join(expected, " ")));
    }
  }
}
