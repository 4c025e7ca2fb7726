#include <doctest/doctest.h>

#include <array>
#include <map>

#include "golden/golden.h"
#include "worst.h"

using namespace golden;

namespace {

constexpr double kLogitTolerance = 2e-3, kNllTolerance = 1e-4, kTie = 1e-2;
constexpr int kMaxTokens = 12288;

/// Engines are loaded once a model.
Engine& engine_of(const std::string& model) {
  static std::map<std::string, std::unique_ptr<Engine>> engines;
  auto& e = engines[model];
  if (!e) e = make_engine(source_dir() / "recipes/models" / model, tandem::DType::f32, kMaxTokens);
  return *e;
}

void check_logits(const std::string& model, const Ids& ids, const nlohmann::json& c) {
  CAPTURE(model);
  CAPTURE(ids.size());
  const Scored ours = score(engine_of(model), ids, {static_cast<int>(ids.size()) - 1});
  const Ids top = c.at("top20_ids");
  const std::vector<float> want = c.at("top20_logits");
  double worst = 0;
  for (size_t i = 0; i < top.size(); ++i)
    worst = tandem::test::worse(worst, double(std::abs(want[i] - ours.logits[0][static_cast<size_t>(top[i])])));
  CHECK(worst <= kLogitTolerance);
  double sum = 0;
  for (const float x : ours.logits[0]) sum += std::exp(double(x));
  CHECK(std::abs(std::log(sum) - c.at("logsumexp").get<double>()) <= kLogitTolerance);
  double nll_error = 0;
  if (!c.at("mean_nll").is_null()) {
    nll_error = std::abs(ours.mean_nll - c.at("mean_nll").get<double>());
    CHECK(nll_error <= kNllTolerance);
  }
  MESSAGE(model << " at " << ids.size() << " tokens: |logit - golden| " << worst << ", |NLL - golden| "
                << nll_error);
}

void check_greedy(const std::string& model, const nlohmann::json& c) {
  CAPTURE(model);
  const Ids want = c.at("greedy_ids");
  const Ids ours = greedy(engine_of(model), c.at("prompt_ids"), want.size());
  CHECK(first_real_difference(ours, want, c.at("top1_minus_top2"), kTie) == -1);
}

}  // namespace

TEST_SUITE("golden/tiny") {
  TEST_CASE("f32 logits and NLL equal transformers' at every length") {
    const auto golden = read_json(source_dir() / "tests/data/golden/tiny/logits.json");
    const Ids ids = golden.at("ids");
    for (const auto& c : golden.at("cases")) {
      const auto length = c.at("length").get<size_t>();
      REQUIRE(length <= ids.size());
      check_logits(c.at("model"), Ids(ids.begin(), ids.begin() + static_cast<long>(length)), c);
    }
  }

  TEST_CASE("f32 greedy text equals transformers' wherever its choice was clear") {
    for (const auto& c : read_json(source_dir() / "tests/data/golden/tiny/greedy.json"))
      check_greedy(c.at("model"), c);
  }

  TEST_CASE("the reference file beside the checkout: logits, NLL, greedy text") {
    if (shared_dir().empty() || !std::filesystem::exists(shared_dir() / "golden/tiny_models.json")) {
      MESSAGE("skipped: ../shared/golden/tiny_models.json is not there");
      return;
    }
    const auto golden = read_json(shared_dir() / "golden/tiny_models.json");
    const std::map<std::string, std::string> names{{"target", "tiny-16m"}, {"draft", "tiny-2m"}};
    for (const auto& c : golden.at("logits")) check_logits(names.at(c.at("model")), c.at("ids"), c);
    for (const auto& c : golden.at("greedy")) check_greedy(names.at(c.at("model")), c);
  }

  TEST_CASE("stories260K: greedy ids of a double-precision program") {
    const auto folder = shared_dir() / "models/stories260K";
    if (shared_dir().empty() || !std::filesystem::exists(folder)) {
      MESSAGE("skipped: ../shared/models/stories260K is not there");
      return;
    }
    const auto golden = read_json(folder / "golden_greedy.json");
    const Ids want = golden.at("generated_ids");
    const auto engine = make_engine(folder / "hf", tandem::DType::f32, 512);
    const size_t n = std::min<size_t>(want.size(), 500);
    const Ids ours = greedy(*engine, {golden.at("bos").get<int32_t>()}, n);
    CHECK(ours == Ids(want.begin(), want.begin() + static_cast<long>(n)));
  }
}
