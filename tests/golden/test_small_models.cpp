#include <doctest/doctest.h>

#include "golden/golden.h"
#include "worst.h"

using namespace golden;

namespace {

// The bound for real models; small random ones have logits of a few units as well.
constexpr double kLogitTolerance = 2e-3, kNllTolerance = 1e-4, kTie = 1e-2;

std::vector<std::string> small_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "tests/data/models"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_SUITE("golden/small") {
  TEST_CASE("f32 logits, NLL and greedy text of every supported architecture equal transformers'") {
    const auto names = small_models();
    CHECK(names.size() >= 9);
    for (const std::string& name : names) {
      CAPTURE(name);
      const auto engine = make_engine(source_dir() / "tests/data/models" / name, tandem::DType::f32, 256);
      double worst = 0;
      for (const auto& c : read_json(source_dir() / "tests/data/golden/small" / (name + ".json"))) {
        const Ids ids = c.at("ids");
        CAPTURE(ids.size());
        const std::vector<int> positions = c.at("positions");
        const Scored ours = score(*engine, ids, positions);
        REQUIRE(ours.logits.size() == positions.size());
        for (size_t i = 0; i < positions.size(); ++i) {
          const std::vector<float> want = c.at("logits")[i];
          REQUIRE(want.size() == ours.logits[i].size());
          for (size_t v = 0; v < want.size(); ++v)
            worst = tandem::test::worse(worst, double(std::abs(want[v] - ours.logits[i][v])));
        }
        if (!c.at("mean_nll").is_null())
          CHECK(std::abs(ours.mean_nll - c.at("mean_nll").get<double>()) <= kNllTolerance);
        const Ids want = c.at("greedy_ids");
        CHECK(first_real_difference(greedy(*engine, ids, want.size()), want, c.at("top1_minus_top2"),
                                    kTie) == -1);
      }
      MESSAGE(name << ": largest |logit - golden| " << worst);
      CHECK(worst <= kLogitTolerance);
    }
  }
}
