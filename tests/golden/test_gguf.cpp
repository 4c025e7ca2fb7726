// Models in GGUF files against the folders that they were made from.
#include <doctest/doctest.h>

#include <fstream>

#include "golden/golden.h"
#include "io/file.h"
#include "io/json.h"
#include "temporary_folder.h"

using namespace golden;

namespace {

/// Copies a model's folder, with changes of its config.json.
std::string changed_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                           const tandem::io::Json& changes) {
  std::filesystem::copy(from, to);
  auto config = tandem::io::parse_json(tandem::io::read_file(from / "config.json"), "config.json");
  config.update(changes);
  std::ofstream(to / "config.json") << config.dump();
  return to.string();
}

Scored scores(const std::filesystem::path& model, const Ids& ids) {
  const auto engine = make_engine(model, tandem::DType::f32, 256);
  return in_new_sequence(*engine, [&](int slot) {
    return score(*engine, slot, ids, {0, 17, 39}, {static_cast<int>(ids.size())});
  });
}

}  // namespace

TEST_SUITE("golden/gguf") {
  TEST_CASE("a GGUF file has the logits of its folder") {
    const tandem::test::TemporaryFolder folder;
    struct Case {
      const char* name;
      tandem::io::Json changes;  // for keys that GGUF does not have
      double tolerance;
    };
    const Case cases[] = {{"mistral-plain", {}, 0},
                          {"llama-3.1", {}, 2e-5},  // its factors of RoPE were rounded
                          {"qwen2-tied", {}, 0},
                          {"qwen3-tied", {}, 0},
                          {"gemma3", {{"query_pre_attn_scalar", 24}}, 0},
                          {"phi3", {}, 0},
                          {"granite", {}, 0},
                          {"smollm3", {{"no_rope_layers", {1, 1, 1, 0}}}, 0},
                          {"olmo2", {}, 0}};
    Ids ids;
    for (int i = 0; i < 40; ++i) ids.push_back(3 + i * 29 % 120);
    const auto data = tandem::test::source_dir() / "tests/data";
    for (const auto& [name, changes, tolerance] : cases) {
      CAPTURE(name);
      const std::string from = (data / "models" / name).string();
      const Scored want =
          scores(changes.empty() ? from : changed_folder(from, folder / name, changes), ids);
      const Scored found = scores(data / "gguf" / (std::string(name) + ".gguf"), ids);
      double worst = 0, largest = 0;
      for (size_t i = 0; i < want.logits.size(); ++i)
        for (size_t v = 0; v < want.logits[i].size(); ++v) {
          worst = tandem::test::worse(
              worst, std::abs(double(want.logits[i][v]) - double(found.logits[i][v])));
          largest = std::max(largest, std::abs(double(want.logits[i][v])));
        }
      CHECK(largest > 1);
      CHECK(worst <= tolerance * largest);
    }
  }
}
