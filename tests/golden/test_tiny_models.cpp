#include <doctest/doctest.h>

#include <map>

#include "golden/golden_checks.h"

using namespace golden;

TEST_SUITE("golden/tiny") {
  TEST_CASE("f32 logits and NLL equal transformers' at every length") {
    check_tiny_logits(Texts::shorter, {});
  }

  TEST_CASE("f32 greedy text equals transformers' wherever its choice was clear") {
    check_tiny_greedy(Texts::shorter, {});
  }
}

// The 12,000 tokens of a model are read once, by the first of these cases.
TEST_SUITE("golden/long") {
  TEST_CASE("f32 logits and NLL equal transformers' at 4,096 and 12,000 tokens") {
    check_tiny_logits(Texts::longer, {});
  }

  TEST_CASE("f32 greedy text after 10,774 tokens equals transformers'") {
    check_tiny_greedy(Texts::longer, {});
  }

  TEST_CASE("the reference file beside the checkout: logits, NLL, greedy text") {
    if (shared_dir().empty() ||
        !std::filesystem::exists(shared_dir() / "golden/tiny_models.json")) {
      MESSAGE("skipped: ../shared/golden/tiny_models.json is not there");
      return;
    }
    const auto golden = read_json(shared_dir() / "golden/tiny_models.json");
    const std::map<std::string, std::string> names{{"target", "tiny-16m"}, {"draft", "tiny-2m"}};
    for (const auto& c : golden.at("logits"))
      check_logits(names.at(c.at("model")), c.at("ids"), c, {});
    for (const auto& c : golden.at("greedy")) check_greedy(names.at(c.at("model")), c, {});
  }
}

TEST_SUITE("golden/stories") {
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
    const Ids bos = {golden.at("bos").get<int32_t>()};
    const Ids ours =
        in_new_sequence(*engine, [&](int slot) { return greedy(*engine, slot, bos, n); });
    CHECK(ours == Ids(want.begin(), want.begin() + static_cast<long>(n)));
  }
}
