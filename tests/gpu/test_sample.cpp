#include "gpu/device_buffer.h"
#include "kernels/sample_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Rows of all natures in turn.
struct Rows {
  int n, vocab;
  std::vector<float> logits;

  Rows(int n_rows, int size, uint32_t seed, float shift = 0) : n(n_rows), vocab(size) {
    for (int r = 0; r < n; ++r) {
      // Rows of one nature share their logits: long rows take a while to make.
      if (r >= 5 && size > 10000) {
        for (int i = 0; i < size; ++i)
          logits.push_back(logits[logits.size() - 5 * static_cast<size_t>(size)]);
        continue;
      }
      const auto row = random_logits(kNatures[r % 5], vocab, seed + static_cast<uint32_t>(r / 5));
      for (const float x : row) logits.push_back(x + shift);
    }
  }
};

struct Stats {
  std::vector<int32_t> argmax;
  std::vector<float> max, lse;
  explicit Stats(int n)
      : argmax(static_cast<size_t>(n)), max(static_cast<size_t>(n)), lse(static_cast<size_t>(n)) {}
};

Stats stats_on_cpu(const Rows& rows) {
  Stats s(rows.n);
  cpu_table().logit_stats(
      {s.argmax.data(), s.max.data(), s.lse.data(), rows.logits.data(), rows.n, rows.vocab},
      {0, rows.n});
  return s;
}

/// As a draw of the best gives them; max from its logprob.
Stats stats_on_gpu(const Rows& rows, size_t shift = 0) {
  const auto n = static_cast<size_t>(rows.n);
  const DeviceBuffer logits(rows.logits, shift), argmax(n * 4), logprobs(n * 4), lse(n * 4);
  SampleParams p{};
  p.tokens = argmax.as<int32_t>();
  p.logits = logits.as<float>();
  p.n_rows = rows.n;
  p.vocab = rows.vocab;
  p.rule = keep_rule({.temperature = 0});
  p.workspace = row_workspace(rows.vocab, rows.n, 1);
  p.logprobs = logprobs.as<float>();
  p.lse = lse.as<float>();
  const auto work = [&] { cuda_table().sample(p, queue().stream()); };
  require_same_in_graph(lse, work);
  require_same_in_graph(argmax, work);
  cuda::launched("sample", queue().stream());
  Stats s(rows.n);
  s.argmax = argmax.vector<int32_t>();
  s.lse = lse.vector<float>();
  const std::vector<float> logprob = logprobs.vector<float>();
  for (size_t r = 0; r < n; ++r) {
    const int32_t best = s.argmax[r];
    const auto at = r * static_cast<size_t>(rows.vocab) + static_cast<size_t>(std::max(best, 0));
    s.max[r] = best < 0 ? kNan : rows.logits[at];
    REQUIRE(std::isnan(logprob[r]) == (best < 0));
    if (best >= 0) REQUIRE(logprob[r] == rows.logits[at] - s.lse[r]);
  }
  return s;
}

constexpr int kVocabs[] = {1, 2, 15, 63, 64, 65, 1009, 4096, 4097, 9000, 32000, 128256, 152064};

/// What sample() needs besides the logits.
struct Draw {
  Settings settings;
  std::vector<double> uniform;
  std::vector<int32_t> seen, seen_begin;

  /// Histories of different lengths, with repeats, the ends and the middle of the vocabulary.
  Draw(const Settings& s, const Rows& rows, PhiloxStream& stream) : settings(s), seen_begin{0} {
    for (int r = 0; r < rows.n; ++r) {
      uniform.push_back(r == 1 ? 0.0 : r == 2 ? 1 - 0x1p-53 : stream.uniform());
      for (int i = 0; i < r * 40; ++i)
        seen.push_back(static_cast<int32_t>(stream.below(static_cast<uint32_t>(rows.vocab))));
      for (const int32_t id : {0, rows.vocab - 1, rows.vocab / 3, rows.vocab / 3})
        if (r % 4 != 1) seen.push_back(id);
      seen_begin.push_back(static_cast<int32_t>(seen.size()));
    }
  }
  SampleParams params(const Rows& rows) const {
    return {.tokens = nullptr,
            .logits = rows.logits.data(),
            .uniform = uniform.data(),
            .seen = seen.data(),
            .seen_begin = seen_begin.data(),
            .n_rows = rows.n,
            .vocab = rows.vocab,
            .rule = keep_rule(settings),
            .workspace = nullptr};
  }
};

std::vector<int32_t> draw_on_cpu(const Rows& rows, const Draw& draw) {
  const WorkspaceBytes workspace(rows.vocab);
  std::vector<int32_t> tokens(static_cast<size_t>(rows.n));
  SampleParams p = draw.params(rows);
  p.tokens = tokens.data();
  p.workspace = workspace.get();
  cpu_table().sample(p, {0, rows.n});
  return tokens;
}

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, lse;
};

Drawn draw_on_gpu(const Rows& rows, const Draw& draw, bool in_graph = false) {
  const auto n = static_cast<size_t>(rows.n);
  const DeviceBuffer logits(rows.logits), uniform(draw.uniform), seen(draw.seen),
      seen_begin(draw.seen_begin), tokens(n * 4), logprobs(n * 4), lse(n * 4);
  SampleParams p = draw.params(rows);
  p.tokens = tokens.as<int32_t>();
  p.logits = logits.as<float>();
  p.uniform = uniform.as<double>();
  p.seen = seen.as<int32_t>();
  p.seen_begin = seen_begin.as<int32_t>();
  p.logprobs = logprobs.as<float>();
  p.lse = lse.as<float>();
  p.workspace = row_workspace(rows.vocab, rows.n, 1);
  const auto work = [&] { cuda_table().sample(p, queue().stream()); };
  if (in_graph)
    for (const DeviceBuffer* out : {&tokens, &logprobs, &lse}) require_same_in_graph(*out, work);
  else
    work();
  cuda::launched("sample", queue().stream());
  // Without the optional outputs: the same tokens.
  const Drawn drawn{tokens.vector<int32_t>(), logprobs.vector<float>(), lse.vector<float>()};
  p.logprobs = p.lse = nullptr;
  tokens.poison();
  cuda_table().sample(p, queue().stream());
  REQUIRE(tokens.vector<int32_t>() == drawn.tokens);
  return drawn;
}

}  // namespace

TEST_SUITE("gpu/kernels/sample, the best") {
  TEST_CASE("argmax and max are the CPU's, lse within a rounding of it") {
    for (const int vocab : kVocabs)
      for (const int n : {1, 5, 20})
        for (const float shift : {0.0f, -500.0f}) {
          CAPTURE(vocab);
          CAPTURE(n);
          CAPTURE(shift);
          const Rows rows(n, vocab, 1, shift);
          const Stats want = stats_on_cpu(rows), got = stats_on_gpu(rows, n == 5 ? 4 : 0);
          REQUIRE(got.argmax == want.argmax);
          REQUIRE(got.max == want.max);
          // The same sum of integers; the two logarithms may differ by a spacing of f64.
          for (size_t r = 0; r < want.lse.size(); ++r)
            REQUIRE(std::abs(double{got.lse[r]} - want.lse[r]) <= 0x1p-23 * std::abs(want.lse[r]));
        }
  }

  TEST_CASE("a row's result does not depend on the rows beside it") {
    const Rows many(20, 32000, 1);
    const Stats all = stats_on_gpu(many);
    Rows one(1, 32000, 1);
    for (const int r : {0, 3, 19}) {
      one.logits.assign(many.logits.begin() + r * 32000, many.logits.begin() + (r + 1) * 32000);
      const Stats alone = stats_on_gpu(one);
      CHECK(alone.argmax[0] == all.argmax[static_cast<size_t>(r)]);
      CHECK(alone.lse[0] == all.lse[static_cast<size_t>(r)]);
    }
  }

  TEST_CASE("meaningless rows are reported, masked ones are not") {
    constexpr float kMax = std::numeric_limits<float>::max();
    for (const int vocab : {1, 16, 1009, 70001}) {
      const float values[][2] = {{kNan, -kInf}, {-kNan, -kInf}, {kInf, -kInf}, {-kInf, -kInf},
                                 {kNan, 1},     {-kNan, 1},     {-3, -kInf},   {kMax, -3}};
      for (const int at : {0, vocab / 2, vocab - 1}) {
        Rows rows(0, vocab, 1);
        for (const auto& [value, others] : values) {
          rows.logits.resize(rows.logits.size() + static_cast<size_t>(vocab), others);
          rows.logits[static_cast<size_t>(rows.n++ * vocab + at)] = value;
        }
        CAPTURE(vocab);
        CAPTURE(at);
        const std::vector<int32_t> want{-1, -1, -1, -1, -1, -1, at, at};
        const Stats got = stats_on_gpu(rows);
        REQUIRE(got.argmax == want);
        PhiloxStream stream(1);
        for (const Settings& s : {Settings{.temperature = 0}, Settings{.top_k = 3},
                                  Settings{.top_p = 0.9}, Settings{.temperature = 0.8f}}) {
          const Drawn drawn = draw_on_gpu(rows, Draw(s, rows, stream));
          REQUIRE(drawn.tokens == want);
          for (size_t r = 0; r < want.size(); ++r) {
            REQUIRE(std::isnan(got.lse[r]) == (want[r] < 0));
            REQUIRE(std::isnan(got.max[r]) == (want[r] < 0));
            REQUIRE(std::isnan(drawn.lse[r]) == (want[r] < 0));
            REQUIRE(std::isnan(drawn.logprobs[r]) == (want[r] < 0));
          }
        }
      }
    }
  }

  TEST_CASE("too large a vocabulary is refused") {
    SampleParams p{};
    p.n_rows = 1;
    p.vocab = kMaxVocabCuda + 1;
    p.rule = keep_rule({.temperature = 0});
    CHECK_THROWS(cuda_table().sample(p, queue().stream()));
  }

  TEST_CASE("the largest vocabulary fits") {
    Rows rows(1, kMaxVocabCuda, 3);
    Rows many = rows;
    for (int r = 1; r < 9; ++r)
      many.logits.insert(many.logits.end(), rows.logits.begin(), rows.logits.end());
    many.n = 9;
    const Stats want = stats_on_cpu(rows), got = stats_on_gpu(many);
    CHECK(got.argmax == std::vector<int32_t>(9, want.argmax[0]));
    CHECK(stats_on_gpu(rows).argmax == want.argmax);
    PhiloxStream stream(2);
    const Draw draw({.temperature = 0.9f, .top_p = 0.9, .penalty = 1.1f}, many, stream);
    CHECK(draw_on_gpu(many, draw).tokens == draw_on_cpu(many, draw));
  }
}

TEST_SUITE("gpu/kernels/top_n") {
  TEST_CASE("equal to the reference") {
    for (const int vocab : kVocabs)
      for (const int n : {1, 2, 20, 64}) {
        if (n > vocab) continue;
        CAPTURE(vocab);
        CAPTURE(n);
        const Rows rows(vocab < 40000 ? 10 : 5, vocab, 2);
        const std::vector<float> lse(static_cast<size_t>(rows.n), 1.25f);
        const auto cells = static_cast<size_t>(rows.n * n);
        std::vector<int32_t> want(cells);
        std::vector<float> want_logprobs(cells);
        top_n_ref({want.data(), want_logprobs.data(), rows.logits.data(), lse.data(), rows.n, vocab,
                   n, nullptr},
                  {0, rows.n});
        const DeviceBuffer logits(rows.logits), device_lse(lse), ids(cells * 4),
            logprobs(cells * 4);
        const TopNParams p{ids.as<int32_t>(),
                           logprobs.as<float>(),
                           logits.as<float>(),
                           device_lse.as<float>(),
                           rows.n,
                           vocab,
                           n,
                           row_workspace(vocab, rows.n, 1)};
        const auto work = [&] { cuda_table().top_n(p, queue().stream()); };
        require_same_in_graph(logprobs, work);
        require_same_in_graph(ids, work);
        cuda::launched("top_n", queue().stream());
        REQUIRE(ids.vector<int32_t>() == want);
        REQUIRE(logprobs.vector<float>() == want_logprobs);
      }
  }

  TEST_CASE("a meaningless row gives no ids; larger n are refused") {
    std::vector<float> x(20000, 0.0f);
    x[15000] = kNan;
    const std::vector<float> lse{0.0f};
    const DeviceBuffer logits(x), device_lse(lse), ids(3 * 4), logprobs(3 * 4);
    TopNParams p{ids.as<int32_t>(),
                 logprobs.as<float>(),
                 logits.as<float>(),
                 device_lse.as<float>(),
                 1,
                 20000,
                 3,
                 row_workspace(20000, 1, 1)};
    cuda_table().top_n(p, queue().stream());
    CHECK(ids.vector<int32_t>() == std::vector<int32_t>(3, kInvalidToken));
    for (const float logprob : logprobs.vector<float>()) CHECK(std::isnan(logprob));
    p.n = kMaxTopNCuda + 1;
    CHECK_THROWS(cuda_table().top_n(p, queue().stream()));
  }
}

TEST_SUITE("gpu/kernels/sample") {
  TEST_CASE("the tokens that the CPU draws, their logprobs in the row as given") {
    PhiloxStream stream(3);
    for (const int vocab : kVocabs)
      for (const int n : {5, 20}) {
        const Rows rows(n, vocab, 4);
        const Stats stats = stats_on_cpu(rows);
        for (const Settings& s : kSettings) {
          CAPTURE(vocab);
          CAPTURE(n);
          CAPTURE(&s - kSettings);
          const Draw draw(s, rows, stream);
          const Drawn got = draw_on_gpu(rows, draw, n == 5);
          const std::vector<int32_t> want = draw_on_cpu(rows, draw);
          REQUIRE(got.tokens == want);
          for (size_t r = 0; r < want.size(); ++r) {
            CAPTURE(r);
            REQUIRE(std::abs(double{got.lse[r]} - stats.lse[r]) <=
                    0x1p-23 * std::abs(stats.lse[r]));
            const float logit =
                rows.logits[r * static_cast<size_t>(vocab) + static_cast<size_t>(want[r])];
            REQUIRE(got.logprobs[r] == logit - got.lse[r]);
          }
        }
      }
  }

  // Few enough for compute-sanitizer, which takes its time over every access to shared memory.
  TEST_CASE("every way to draw, from two rows of some blocks each") {
    PhiloxStream stream(10);
    for (const int vocab : {4097, 9000}) {
      const Rows rows(2, vocab, 4);
      CHECK(stats_on_gpu(rows).argmax == stats_on_cpu(rows).argmax);
      for (const Settings& s :
           {Settings{.temperature = 0}, Settings{.temperature = 0.7f},
            Settings{.top_k = 50, .top_p = 0.9},
            Settings{.temperature = 0.8f, .top_p = 0.8, .min_p = 0.02, .penalty = 1.3f}}) {
        const Draw draw(s, rows, stream);
        CHECK(draw_on_gpu(rows, draw).tokens == draw_on_cpu(rows, draw));
      }
    }
  }

  TEST_CASE("any temperature: the division rounds as the CPU's") {
    PhiloxStream stream(5);
    const Rows rows(5, 32000, 6);
    for (const float t : {1e-30f, 1e-10f, 1e-3f, 0.1f, 0.33f, 0.9999999f, 1.0000001f, 1.7f, 3.0f,
                          77.7f, 1e10f, 1e30f, 3e38f, 1e-41f})
      for (int i = 0; i < 3; ++i) {
        CAPTURE(t);
        const Draw draw({.temperature = t}, rows, stream);
        REQUIRE(draw_on_gpu(rows, draw).tokens == draw_on_cpu(rows, draw));
      }
  }

  TEST_CASE("cuts through a long run of equal logits keep the lower ids") {
    constexpr int kVocab = 128256;
    PhiloxStream stream(7);
    Rows rows(0, kVocab, 1);
    rows.n = 10;
    for (int r = 0; r < rows.n; ++r)
      for (int i = 0; i < kVocab; ++i)
        rows.logits.push_back(i % 1000 == 7 ? 2.0f
                              : i % 3 == 0  ? 0.0f
                              : i % 3 == 1  ? -0.0f
                                            : -1.0f);
    for (const Settings& s :
         {Settings{.top_k = 128}, Settings{.top_k = 129}, Settings{.top_k = 5000},
          Settings{.top_p = 0.4}, Settings{.top_k = 60000, .top_p = 0.7},
          Settings{.temperature = 0.2f, .top_p = 0.9999}, Settings{.min_p = 0.1353},
          Settings{.top_p = 1 - 0x1p-53}}) {
      CAPTURE(s.top_k);
      CAPTURE(s.top_p);
      const Draw draw(s, rows, stream);
      REQUIRE(draw_on_gpu(rows, draw).tokens == draw_on_cpu(rows, draw));
    }
  }

  TEST_CASE("many rows") {
    PhiloxStream stream(8);
    const Rows rows(256, 32000, 9);
    for (const Settings& s : {Settings{}, Settings{.temperature = 0.8f, .top_k = 40, .top_p = 0.95},
                              Settings{.temperature = 0, .penalty = 1.2f}}) {
      const Draw draw(s, rows, stream);
      REQUIRE(draw_on_gpu(rows, draw).tokens == draw_on_cpu(rows, draw));
    }
  }
}
