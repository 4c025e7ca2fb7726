// A model that others trained, in 4 bits. scripts/get-smollm2.sh fetches it.
#include <doctest/doctest.h>

#include <cstdlib>

#include "golden/golden.h"
#include "io/file.h"
#include "io/json.h"
#include "worst.h"

using namespace golden;

namespace {

/// Returns where scripts/get-smollm2.sh puts the file; empty where nothing has fetched it.
std::filesystem::path smollm2() {
  const char *const caches = std::getenv("XDG_CACHE_HOME"), *const home = std::getenv("HOME");
  std::filesystem::path folder;
  if (caches != nullptr && *caches != '\0')
    folder = caches;
  else if (home != nullptr)
    folder = std::filesystem::path(home) / ".cache";
  const auto file = folder / "tandem" / "smollm2-135m-instruct-q4_1.gguf";
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

/// Checks ids, logits and greedy texts against those of transformers.
void check_golden(Engine& engine) {
  const tandem::text::Tokenizer& tokenizer = *engine.files().tokenizer;
  CHECK(tokenizer.encode("1234").size() == 4);  // digits are cut one by one
  double worst = 0;
  for (const auto& c : read_json(source_dir() / "tests/data/golden/smollm2.json")) {
    const Ids ids = c.at("ids"), top = c.at("top_ids"), text = c.at("greedy_ids");
    CAPTURE(c.at("text").get<std::string>());
    CHECK(tokenizer.encode(c.at("text").get<std::string>()) == ids);
    const int last = static_cast<int>(ids.size()) - 1;
    const Scored ours =
        in_new_sequence(engine, [&](int slot) { return score(engine, slot, ids, {last}, {}); });
    for (size_t i = 0; i < top.size(); ++i)
      worst =
          tandem::test::worse(worst, std::abs(c.at("top_logits")[i].get<double>() -
                                              double(ours.logits[0][static_cast<size_t>(top[i])])));
    const Ids found =
        in_new_sequence(engine, [&](int slot) { return greedy(engine, slot, ids, text.size()); });
    CHECK(first_real_difference(found, text, c.at("top1_minus_top2"), 1e-2) == -1);
  }
  MESSAGE("largest |logit - golden| " << worst);
  CHECK(worst <= 1e-3);
}

}  // namespace

TEST_SUITE("golden/smollm2") {
  TEST_CASE("SmolLM2 in Q4_1 has the ids, logits and greedy text of transformers") {
    const std::filesystem::path file = smollm2();
    if (file.empty()) {
      MESSAGE("skipped: scripts/get-smollm2.sh has not fetched the model");
      return;
    }
    // As numbers, and as codes that are multiplied by activations as they are.
    for (const bool codes : {false, true}) {
      CAPTURE(codes);
      tandem::decode::ModelFiles files = tandem::decode::open_model(file.string(), 0);
      if (codes) tandem::decode::keep_codes(files, {}, tandem::DType::f32, false);
      check_golden(*make_engine(std::move(files), tandem::DType::f32, 256));
    }
  }
}
