#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>

#include "gpu/engine_pair.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Choices of products begin anew in a folder of their own.
class OwnChoices {
 public:
  OwnChoices() {
    if (const char* folder = std::getenv(kName)) before_ = folder;
    setenv(kName, folder_.path().c_str(), 1);
    ops::forget_linear_choices();
  }
  ~OwnChoices() {
    if (before_)
      setenv(kName, before_->c_str(), 1);
    else
      unsetenv(kName);
    ops::forget_linear_choices();
  }
  std::string text() const {
    std::ifstream file(folder_.path() / "linear.json");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// Numbers of rows that products were measured for.
  std::set<int> rows() const {
    std::set<int> rows;
    const std::string all = text();
    const std::regex pattern("rows=([0-9]+)");
    for (std::sregex_iterator i(all.begin(), all.end(), pattern), end; i != end; ++i)
      rows.insert(std::stoi((*i)[1]));
    return rows;
  }

 private:
  static constexpr const char* kName = "TANDEM_CACHE_DIR";
  TemporaryFolder folder_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_SUITE("gpu/decode/choices") {
  TEST_CASE("products are measured for the numbers of rows that come, before they are first used") {
    const OwnChoices choices;
    std::vector<Row> logits[2];
    std::string kept;
    for (std::vector<Row>& rows : logits) {
      const auto engine = make_engine(tiny_model("tiny-16m"),
                                      {.compute = DType::bf16, .max_seqs = 12, .device = kGpu});
      if (kept.empty()) CHECK(choices.rows().empty());
      const Ids ids = random_ids(*engine, 20, 1), after = random_ids(*engine, 3, 2);
      const int slot = engine->cache().create();
      rows = {prefill(*engine, slot, ids)};
      if (kept.empty()) CHECK(choices.rows() == std::set<int>{1, 32});
      for (Row& row : extend_each(*engine, slot, after)) rows.push_back(std::move(row));
      rows.push_back(extend(*engine, slot, after));
      if (kept.empty()) CHECK(choices.rows() == std::set<int>{1, 3, 32});
      decode::GenerateSpec spec;
      spec.max_tokens = 4;
      generate(*engine, {request(ids), request(ids)}, spec);
      CHECK(choices.rows() == std::set<int>{1, 2, 3, 32, 64});
      if (kept.empty()) kept = choices.text();
      CHECK(choices.text() == kept);
      ops::forget_linear_choices();
    }
    CHECK(same(logits[0], logits[1]));  // what was measured first served the first run too
  }

  TEST_CASE("logits that are held stay as they are while products of later rows are measured") {
    const OwnChoices choices;
    recipe::Cache quest;  // its rows go in parts of at most 16
    quest.kind = recipe::CacheKind::quest;
    const auto engine = make_engine(
        tiny_model("tiny-16m"), {.compute = DType::bf16, .caches = {{}, quest}, .device = kGpu});
    const Ids ids = random_ids(*engine, 59, 1);
    const decode::SeqTokens prompt{engine->cache().create(engine->cache().all_readers()),
                                   std::span(ids).first(22), true};
    engine->prefill({&prompt, 1}, {});
    std::vector<Row> logits[2];
    for (std::vector<Row>& rows : logits) {  // 37 rows in parts of 16, 16 and 5
      const decode::SeqTokens after{engine->cache().fork(prompt.slot, 0),
                                    std::span(ids).subspan(22), true};
      engine->forward_all(kv::Phase::extend, {&after, 1}, [&](int, const Tensor& part) {
        for (int64_t i = 0; i < part.rows(); ++i) rows.push_back(row_of(part, i));
      });
      CHECK(rows.size() == 37);
      CHECK(choices.rows().contains(5));
    }
    CHECK(same(logits[0], logits[1]));
  }
}
