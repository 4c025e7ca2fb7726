#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "golden/golden.h"
#include "worst.h"

/// The comparisons themselves, on a device.
namespace golden {

// The project's bounds for real models; small random ones have logits of a few units as well.
inline constexpr double kLogitTolerance = 2e-3, kNllTolerance = 1e-4, kTie = 1e-2;
inline constexpr int kMaxTokens = 12288;

inline std::vector<std::string> small_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "tests/data/models"))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline void check_small_models(tandem::Device device) {
  const auto names = small_models();
  CHECK(names.size() >= 12);
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto engine = make_engine(source_dir() / "tests/data/models" / name, tandem::DType::f32,
                                    256, 1, 512, {}, device);
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

/// Engines of the tiny models are loaded once a device.
inline Engine& engine_of(const std::string& model, tandem::Device device) {
  static std::map<std::string, std::unique_ptr<Engine>> engines;
  auto& e = engines[model + " " + device.name()];
  if (!e)
    e = make_engine(source_dir() / "recipes/models" / model, tandem::DType::f32, kMaxTokens, 1, 512,
                    {}, device);
  return *e;
}

inline void check_logits(const std::string& model, const Ids& ids, const nlohmann::json& c,
                         tandem::Device device) {
  CAPTURE(model);
  CAPTURE(ids.size());
  const Scored ours = score(engine_of(model, device), ids, {static_cast<int>(ids.size()) - 1});
  const Ids top = c.at("top20_ids");
  const std::vector<float> want = c.at("top20_logits");
  double worst = 0;
  for (size_t i = 0; i < top.size(); ++i)
    worst = tandem::test::worse(
        worst, double(std::abs(want[i] - ours.logits[0][static_cast<size_t>(top[i])])));
  CHECK(worst <= kLogitTolerance);
  double sum = 0;
  for (const float x : ours.logits[0]) sum += std::exp(double(x));
  CHECK(std::abs(std::log(sum) - c.at("logsumexp").get<double>()) <= kLogitTolerance);
  double nll_error = 0;
  if (!c.at("mean_nll").is_null()) {
    nll_error = std::abs(ours.mean_nll - c.at("mean_nll").get<double>());
    CHECK(nll_error <= kNllTolerance);
  }
  MESSAGE(model << " at " << ids.size() << " tokens: |logit - golden| " << worst
                << ", |NLL - golden| " << nll_error);
}

inline void check_greedy(const std::string& model, const nlohmann::json& c, tandem::Device device) {
  CAPTURE(model);
  const Ids want = c.at("greedy_ids");
  const Ids ours = greedy(engine_of(model, device), c.at("prompt_ids"), want.size());
  CHECK(first_real_difference(ours, want, c.at("top1_minus_top2"), kTie) == -1);
}

inline void check_tiny_logits(tandem::Device device) {
  const auto golden = read_json(source_dir() / "tests/data/golden/tiny/logits.json");
  const Ids ids = golden.at("ids");
  for (const auto& c : golden.at("cases")) {
    const auto length = c.at("length").get<size_t>();
    REQUIRE(length <= ids.size());
    check_logits(c.at("model"), Ids(ids.begin(), ids.begin() + static_cast<long>(length)), c,
                 device);
  }
}

inline void check_tiny_greedy(tandem::Device device) {
  for (const auto& c : read_json(source_dir() / "tests/data/golden/tiny/greedy.json"))
    check_greedy(c.at("model"), c, device);
}

}  // namespace golden
