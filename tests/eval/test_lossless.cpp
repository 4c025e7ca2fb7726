#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "changed_drafter.h"
#include "eval/lossless.h"
#include "generate_runs.h"
#include "speculate/draft/model_drafter.h"
#include "speculate/round/rounds.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::eval;
using decode::DrawSeq;
using test::Ids;

namespace {

/// Children of the root that are the draft's best tokens, called drawn: what the residual rule must
/// not be fed.
std::unique_ptr<speculate::Drafter> deterministic(decode::Engine& draft, decode::Engine& target,
                                                  const speculate::TokenTree& tree) {
  const auto best_tokens = [n = tree.n_children[0]](speculate::Round& round) {
    const Tensor logits = round.level_logits(0);
    for (size_t b = 0; b < round.n_seqs(); ++b) {
      const Row row = row_of(logits, static_cast<int>(b));
      Ids best(row.size());
      std::iota(best.begin(), best.end(), 0);
      std::ranges::partial_sort(best, best.begin() + n, std::greater<>(),
                                [&](int32_t id) { return row[static_cast<size_t>(id)]; });
      std::copy_n(best.begin(), n, round.host_tokens(b).begin() + 1);
    }
  };
  return std::make_unique<ChangedDrafter>(
      std::make_unique<speculate::ModelDrafter>(draft, target, tree),
      ChangedDrafter::Changes{.proposals = best_tokens});
}

/// Plain decoding that now and then gives the next id instead.
class SlippingDecoder final : public decode::Decoder {
 public:
  explicit SlippingDecoder(decode::Engine& engine) : inner_(decode::plain_decoder(engine)) {}
  void start(const decode::SamplerSpec& spec) override { inner_->start(spec); }
  int depth() const override { return 1; }
  int in_flight() const override { return inner_->in_flight(); }
  void draw(std::span<const DrawSeq> seqs, const Tensor& logits) override {
    inner_->draw(seqs, logits);
  }
  void step(std::span<const DrawSeq> seqs) override { inner_->step(seqs); }
  std::vector<std::vector<decode::Drawn>> collect() override {
    auto drawn = inner_->collect();
    if (++n_ == 7) ++drawn[0][0].id;
    return drawn;
  }
  void forget(int slot) override { inner_->forget(slot); }
  double bytes_read() const override { return inner_->bytes_read(); }

 private:
  std::unique_ptr<decode::Decoder> inner_;
  int n_ = 0;
};

/// A target, a draft, and a prompt that both continue.
struct Pair {
  std::unique_ptr<decode::Engine> target =
      make_engine(tiny_model("tiny-16m"), {.max_seqs = 33, .max_tokens = 128});
  std::unique_ptr<decode::Engine> draft =
      make_engine(tiny_model("tiny-2m"), {.max_seqs = 34, .max_tokens = 128});
  Ids prompt = target->tokenizer()->encode("The keeper of the lighthouse");
  int slot = target->cache().create();

  Pair() {
    const decode::SeqTokens whole[] = {{slot, prompt, false}};
    target->prefill(whole, {});
  }

  DistributionCheck check(std::unique_ptr<speculate::Drafter> drafter, int texts,
                          float temperature) {
    const auto rounds = speculate::drafted_rounds(*target, std::move(drafter));
    return check(*rounds, prompt, texts, temperature, 0);
  }

  /// Behind each of so many prompts.
  DistributionCheck check_prompts(std::unique_ptr<speculate::Drafter> drafter, int prompts,
                                  int texts) {
    const auto rounds = speculate::drafted_rounds(*target, std::move(drafter));
    DistributionCheck sum;
    int64_t seed = 0;
    for (const Ids& ids : varied_prompts(target->files(), prompts, 5)) {
      target->cache().release(slot);
      slot = target->cache().create();
      const decode::SeqTokens whole[] = {{slot, ids, false}};
      target->prefill(whole, {});
      sum.add(check(*rounds, ids, texts, 1.0f, seed));
      seed += 2;
    }
    return sum;
  }

 private:
  DistributionCheck check(speculate::Rounds& rounds, const Ids& ids, int texts, float temperature,
                          int64_t seed) {
    rounds.share(ids);
    decode::GenerateSpec how;
    how.max_tokens = 3;
    how.sampler.rule.temperature = temperature;
    how.sampler.seed = seed;
    return check_distribution(*target, rounds, ids, slot, texts, how);
  }
};

speculate::TokenTree star() {
  return speculate::tree_of_children(std::vector<int>{3, 0, 0, 0}, "test");
}

}  // namespace

TEST_SUITE("eval/lossless") {
  TEST_CASE(
      "sampled texts: drawn children pass, deterministic ones by the residual rule are found out") {
    Pair pair;
    const DistributionCheck right = pair.check(
        std::make_unique<speculate::ModelDrafter>(*pair.draft, *pair.target, star()), 1000, 1.0f);
    CHECK(right.texts == 1000);
    CHECK(right.tests.size() == 4);  // tokens 2 and 3, pairs (1, 2) and (2, 3)
    CAPTURE(right.worst_p());
    CHECK(right.worst_p() > 1e-4);
    const DistributionCheck wrong =
        pair.check(deterministic(*pair.draft, *pair.target, star()), 1000, 1.0f);
    CAPTURE(wrong.worst_p());
    CHECK(wrong.worst_p() < 1e-9);
  }

  TEST_CASE("sampled texts behind many prompts, few behind each") {
    Pair pair;
    const DistributionCheck right = pair.check_prompts(
        std::make_unique<speculate::ModelDrafter>(*pair.draft, *pair.target, star()), 25, 40);
    CHECK(right.texts == 1000);
    CHECK(right.prompts == 25);
    CHECK(right.tests.size() == 4);
    CAPTURE(right.worst_p());
    CHECK(right.worst_p() > 1e-4);
    const DistributionCheck wrong =
        pair.check_prompts(deterministic(*pair.draft, *pair.target, star()), 25, 40);
    CAPTURE(wrong.worst_p());
    CHECK(wrong.worst_p() < 1e-6);
  }

  TEST_CASE("greedy texts: speculation's are equal, a slip is found with its gap") {
    Pair pair;
    const std::vector<Ids> prompts = varied_prompts(pair.target->files(), 5, 0);
    decode::GenerateSpec how;
    how.max_tokens = 20;
    const auto rounds = speculate::model_rounds(*pair.target, *pair.draft, star());
    const GreedyCheck right = check_greedy(*pair.target, *rounds, prompts, how);
    CHECK(right.texts == 5);
    CHECK(right.texts_equal == 5);
    CHECK(right.tokens == 100);
    CHECK(right.max_gap == 0);

    const int pages = pair.target->cache().store().free_pages();
    SlippingDecoder slips(*pair.target);
    const GreedyCheck wrong = check_greedy(*pair.target, slips, prompts, how);
    CHECK(wrong.texts_equal == 4);
    REQUIRE(!wrong.differences.empty());
    const GreedyDifference& d = wrong.differences.front();
    CHECK(d.found == d.expected + 1);
    CHECK(d.gap > 0.5);
    CHECK(wrong.max_gap >= d.gap);
    CHECK(pair.target->cache().store().free_pages() == pages);
  }

  TEST_CASE("by match, sampled texts are the very texts of the target") {
    Pair pair;
    const std::vector<Ids> prompts = varied_prompts(pair.target->files(), 4, 1);
    decode::GenerateSpec how;
    how.max_tokens = 24;
    how.sampler.rule.temperature = 0.7f;
    const auto by_match = speculate::lookup_rounds(*pair.target, 2, 4);
    CHECK(count_equal(*pair.target, *by_match, prompts, how) == 4);
    const auto by_residual = speculate::model_rounds(*pair.target, *pair.draft, star());
    CHECK(count_equal(*pair.target, *by_residual, prompts, how) < 4);
  }

  TEST_CASE("built-in prompts differ, and are the same on every call") {
    Pair pair;
    const std::vector<Ids> prompts = varied_prompts(pair.target->files(), 60, 3);
    CHECK(prompts == varied_prompts(pair.target->files(), 60, 3));
    std::vector<Ids> sorted = prompts;
    std::ranges::sort(sorted);
    CHECK(std::ranges::adjacent_find(sorted) == sorted.end());
    for (const Ids& ids : prompts) {
      CHECK(ids.size() >= 8);
      CHECK(ids.size() <= 47);
    }
    const auto nameless = decode::open_model("synthetic:llama-68m", 0);
    CHECK(varied_prompts(nameless, 3, 0)[2].size() == 10);
  }
}
