#include <algorithm>
#include <set>

#include "kernels/sample_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

using SampleFnRef = void(const SampleParams&, Range);

int draw(SampleFnRef* fn, const std::vector<float>& logits, const Settings& s, double uniform,
         const std::vector<int32_t>& seen = {}) {
  const auto vocab = static_cast<int>(logits.size());
  const WorkspaceBytes workspace(vocab);
  const int32_t seen_begin[2] = {0, static_cast<int32_t>(seen.size())};
  int32_t token = -2;
  fn({.tokens = &token,
      .logits = logits.data(),
      .uniform = &uniform,
      .seen = seen.data(),
      .seen_begin = seen_begin,
      .n_rows = 1,
      .vocab = vocab,
      .rule = keep_rule(s),
      .workspace = workspace.get()},
     {0, 1});
  return token;
}

/// Every token that some uniform yields.
std::set<int> support(const std::vector<float>& logits, const Settings& s) {
  std::set<int> tokens;
  for (int i = 0; i < 1000; ++i) tokens.insert(draw(cpu_table().sample, logits, s, i / 1000.0));
  tokens.insert(draw(cpu_table().sample, logits, s, 1 - 0x1p-53));
  return tokens;
}

}  // namespace

TEST_SUITE("kernels/logit_stats") {
  TEST_CASE("every variant agrees with the reference, and with each other bit for bit") {
    for (const Nature nature : kNatures)
      for (const int vocab : {1, 2, 15, 63, 64, 65, 1009, 32000})
        for (const float shift : {0.0f, 500.0f, -500.0f}) {
          std::vector<float> x = random_logits(nature, vocab, 1);
          for (float& v : x) v += shift;
          int32_t want_id = 0, id = 0;
          float want_max = 0, want_lse = 0, max = 0, lse = 0, scalar_lse = 0;
          logit_stats_ref({&want_id, &want_max, &want_lse, x.data(), 1, vocab}, {0, 1});
          cpu_table(Isa::scalar).logit_stats({&id, &max, &scalar_lse, x.data(), 1, vocab}, {0, 1});
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            CAPTURE(static_cast<int>(nature));
            CAPTURE(vocab);
            CAPTURE(shift);
            cpu_table(isa).logit_stats({&id, &max, &lse, x.data(), 1, vocab}, {0, 1});
            REQUIRE(id == want_id);
            REQUIRE(max == want_max);
            REQUIRE(lse == scalar_lse);
            // exp is within 2e-7; the differences x - max round to half a spacing of at most 28.
            REQUIRE(std::abs(lse - want_lse) <= 2e-7 + 28 * 0x1p-24 + 0x1p-23 * std::abs(want_lse));
          }
        }
  }

  TEST_CASE("meaningless rows are reported, masked ones are not") {
    for (const Isa isa : usable_isas())
      for (const int vocab : {1, 16, 100, 1009})
        for (const int at : {0, vocab / 2, vocab - 1}) {
          CAPTURE(isa_name(isa));
          CAPTURE(vocab);
          CAPTURE(at);
          const auto argmax_with = [&](float value, float others) {
            std::vector<float> x(static_cast<size_t>(vocab), others);
            x[static_cast<size_t>(at)] = value;
            int32_t id = 0;
            float max = 0, lse = 0;
            cpu_table(isa).logit_stats({&id, &max, &lse, x.data(), 1, vocab}, {0, 1});
            REQUIRE(std::isnan(lse) == (id == kInvalidToken));
            REQUIRE(draw(cpu_table(isa).sample, x, {.top_k = 3}, 0.5) == (id < 0 ? id : at));
            REQUIRE(draw(cpu_table(isa).sample, x, {.temperature = 0}, 0.5) == id);
            return id;
          };
          REQUIRE(argmax_with(kNan, -kInf) == kInvalidToken);
          REQUIRE(argmax_with(-kNan, -kInf) == kInvalidToken);
          REQUIRE(argmax_with(kInf, -kInf) == kInvalidToken);
          REQUIRE(argmax_with(-kInf, -kInf) == kInvalidToken);
          REQUIRE(argmax_with(-3.0f, -kInf) == at);
          REQUIRE(argmax_with(std::numeric_limits<float>::max(), -3.0f) == at);
        }
  }
}

TEST_SUITE("kernels/top_n") {
  TEST_CASE("every variant equals the reference") {
    for (const Nature nature : kNatures)
      for (const int vocab : {1, 2, 64, 65, 1009, 32000})
        for (const int n : {1, 2, 20, 64, 1000}) {
          if (n > vocab) continue;
          const std::vector<float> x = random_logits(nature, vocab, 2);
          const float lse = 1.25f;
          const WorkspaceBytes workspace(vocab);
          const auto size = static_cast<size_t>(n);
          std::vector<int32_t> want(size), got(size);
          std::vector<float> want_logprob(size), got_logprob(size);
          top_n_ref({want.data(), want_logprob.data(), x.data(), &lse, 1, vocab, n, nullptr},
                    {0, 1});
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            CAPTURE(static_cast<int>(nature));
            CAPTURE(vocab);
            CAPTURE(n);
            cpu_table(isa).top_n(
                {got.data(), got_logprob.data(), x.data(), &lse, 1, vocab, n, workspace.get()},
                {0, 1});
            REQUIRE(got == want);
            REQUIRE(got_logprob == want_logprob);
          }
        }
  }

  TEST_CASE("a meaningless row gives no ids") {
    std::vector<float> x(100, 0.0f);
    x[50] = kNan;
    const float lse = 0;
    const WorkspaceBytes workspace(100);
    int32_t ids[3];
    float logprobs[3];
    cpu_table().top_n({ids, logprobs, x.data(), &lse, 1, 100, 3, workspace.get()}, {0, 1});
    for (int i = 0; i < 3; ++i) {
      CHECK(ids[i] == kInvalidToken);
      CHECK(std::isnan(logprobs[i]));
    }
  }
}

TEST_SUITE("kernels/sample") {
  TEST_CASE("equal to the reference; every ISA draws the same token") {
    PhiloxStream stream(3);
    for (const Nature nature : kNatures)
      for (const int vocab : {1, 2, 7, 64, 65, 1009, 5003})
        for (const Settings& s : kSettings) {
          const std::vector<float> x = random_logits(nature, vocab, 4);
          const std::vector<int32_t> seen = {0, vocab - 1, vocab / 3, vocab / 3};
          for (int i = 0; i < 5; ++i) {
            // The token is monotone in u, so the reference at u -+ 2e-6 brackets it: weights differ
            // by 28 * 2^-24 of rounded logit differences.
            const double u = stream.uniform();
            const int low = draw(sample_ref, x, s, std::max(0.0, u - 2e-6), seen);
            const int high = draw(sample_ref, x, s, std::min(1 - 0x1p-53, u + 2e-6), seen);
            const int scalar = draw(cpu_table(Isa::scalar).sample, x, s, u, seen);
            for (const Isa isa : usable_isas()) {
              CAPTURE(isa_name(isa));
              CAPTURE(static_cast<int>(nature));
              CAPTURE(vocab);
              CAPTURE(&s - kSettings);
              CAPTURE(u);
              const int token = draw(cpu_table(isa).sample, x, s, u, seen);
              REQUIRE(token == scalar);
              REQUIRE(token >= low);
              REQUIRE(token <= high);
            }
          }
        }
  }

  TEST_CASE("exact sets") {
    // Probabilities 0.4, 0.2, 0.2, 0.1, 0.05, 0.05 in shuffled order.
    const double probability[] = {0.05, 0.2, 0.4, 0.1, 0.2, 0.05};
    std::vector<float> x;
    for (const double p : probability) x.push_back(static_cast<float>(std::log(p)));
    using Set = std::set<int>;
    CHECK(support(x, {}) == Set{0, 1, 2, 3, 4, 5});
    CHECK(support(x, {.top_k = 2}) == Set{1, 2});  // a tie: the lower id
    CHECK(support(x, {.top_k = 3}) == Set{1, 2, 4});
    CHECK(support(x, {.top_p = 0.39}) == Set{2});
    CHECK(support(x, {.top_p = 0.41}) == Set{1, 2});
    CHECK(support(x, {.top_p = 0.61}) == Set{1, 2, 4});
    CHECK(support(x, {.top_p = 0.91}) == Set{0, 1, 2, 3, 4});
    CHECK(support(x, {.top_k = 2, .top_p = 0.66}) == Set{2});  // 0.4 / 0.6 = 0.667
    CHECK(support(x, {.top_k = 2, .top_p = 0.67}) == Set{1, 2});
    CHECK(support(x, {.min_p = 0.49}) == Set{1, 2, 4});
    CHECK(support(x, {.min_p = 0.24}) == Set{1, 2, 3, 4});
    CHECK(support(x, {.top_p = 0.0}) == Set{2});
    CHECK(support(x, {.temperature = 0}) == Set{2});
    CHECK(support({1.0f, 1.0f, 1.0f, 1.0f}, {.top_p = 0.5}) == Set{0, 1});
    CHECK(support({0.0f, 3.0f, -0.0f, 3.0f}, {.temperature = 0}) == Set{1});
    CHECK(support({-0.0f, 0.0f}, {.temperature = 0}) == Set{0});
  }

  TEST_CASE("exact cuts of many tokens of one weight, with and without a heavier one") {
    constexpr int kVocab = 3000;
    const double last = 1 - 0x1p-53;
    for (const Isa isa : usable_isas()) {
      CAPTURE(isa_name(isa));
      SampleFn* const sample = cpu_table(isa).sample;
      std::vector<float> x(kVocab, 2.0f);
      CHECK(draw(sample, x, {.top_p = 0.5}, last) == kVocab / 2 - 1);
      CHECK(draw(sample, x, {.top_p = 0.25}, last) == kVocab / 4 - 1);
      CHECK(draw(sample, x, {.top_p = std::nextafter(1.0, 0.0)}, last) == kVocab - 1);
      // One token weighs what 2^20 others do: those that follow are cut one by one.
      x[100] += 20 * std::log(2.0f);
      CHECK(draw(sample, x, {.top_p = 0.99}, last) == 100);
      x[100] = 2.0f;
      x[kVocab - 1] = -std::numeric_limits<float>::infinity();
      CHECK(draw(sample, x, {.top_p = std::nextafter(1.0, 0.0)}, last) == kVocab - 2);
    }
  }

  TEST_CASE("the repetition penalty divides positive and multiplies negative logits, once") {
    const Settings greedy{.temperature = 0, .penalty = 2.0f};
    const auto pick = [&](std::vector<float> x, std::vector<int32_t> seen) {
      return draw(cpu_table().sample, x, greedy, 0, seen);
    };
    CHECK(pick({4.0f, 1.9f}, {0}) == 0);
    CHECK(pick({4.0f, 2.1f}, {0}) == 1);
    CHECK(pick({4.0f, 1.9f}, {0, 0, 0}) == 0);
    CHECK(pick({-1.0f, -1.9f}, {0}) == 1);
    CHECK(pick({-1.0f, -2.1f}, {0}) == 0);
  }

  TEST_CASE("frequencies follow the distribution of the settings") {
    const std::vector<float> x = {1.0f, -0.5f, 2.0f, 0.3f, 0.0f, -1.0f, 1.5f, 0.9f, -3.0f, 0.7f};
    struct Setting {
      Settings settings;
      int n_kept;       // the n_kept largest remain
      double critical;  // chi-square, n_kept - 1 degrees of freedom, p = 0.001
    };
    const Setting all[] = {{{}, 10, 27.88},
                           {{.temperature = 0.5f}, 10, 27.88},
                           {{.temperature = 1.4f, .top_k = 4}, 4, 16.27},
                           {{.min_p = 0.2}, 5, 18.47}};
    for (const Setting& setting : all) {
      CAPTURE(&setting - all);
      std::vector<size_t> order(x.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
      order.resize(static_cast<size_t>(setting.n_kept));
      double total = 0;
      for (const size_t i : order) total += std::exp(double{x[i]} / setting.settings.temperature);
      constexpr int kDraws = 40000;
      std::vector<int> count(x.size());
      PhiloxStream stream(6);
      for (int i = 0; i < kDraws; ++i)
        ++count[static_cast<size_t>(
            draw(cpu_table().sample, x, setting.settings, stream.uniform()))];
      double chi2 = 0;
      int drawn = 0;
      for (const size_t i : order) {
        const double expected =
            kDraws * std::exp(double{x[i]} / setting.settings.temperature) / total;
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        drawn += count[i];
      }
      CHECK(drawn == kDraws);
      CHECK(chi2 < setting.critical);
    }
  }

  TEST_CASE("rows are independent of how they are divided among calls") {
    constexpr int kRows = 6, kVocab = 1009;
    std::vector<float> x;
    std::vector<double> uniform;
    for (uint32_t r = 0; r < kRows; ++r) {
      const auto row = random_logits(Nature::normal, kVocab, 10 + r);
      x.insert(x.end(), row.begin(), row.end());
      uniform.push_back(0.15 * r);
    }
    const WorkspaceBytes workspace(kVocab);
    const std::vector<int32_t> seen = {1, 2, 3}, begin = {0, 0, 1, 1, 2, 3, 3};
    std::vector<int32_t> all(kRows), one(kRows);
    SampleParams p{.tokens = all.data(),
                   .logits = x.data(),
                   .uniform = uniform.data(),
                   .seen = seen.data(),
                   .seen_begin = begin.data(),
                   .n_rows = kRows,
                   .vocab = kVocab,
                   .rule = {.repetition_penalty = 1.2f,
                            .temperature = 0.9f,
                            .top_k = 40,
                            .top_p = 0.95,
                            .min_p = 0.01},
                   .workspace = workspace.get()};
    cpu_table().sample(p, {0, kRows});
    p.tokens = one.data();
    for (int r = kRows - 1; r >= 0; --r) cpu_table().sample(p, {r, r + 1});
    CHECK(all == one);
    std::vector<int32_t> want(kRows);
    p.tokens = want.data();
    sample_ref(p, {0, kRows});
    CHECK(all == want);
  }
}
