#include <doctest/doctest.h>

#include <cmath>

#include "base/convert.h"
#include "base/error.h"
#include "eval/attention_error.h"
#include "eval/eval_testing.h"
#include "kv/policy_rig.h"

using namespace tandem;
using namespace eval_testing;
using eval::AttentionMeter;
using eval::AttentionQuality;
using eval::Window;
using recipe::CacheKind;
using test::PolicyRig;
using test::sparse_cache;

namespace {

constexpr int kPrompt = 700, kRows = 5;

/// Every list as (token, weight), apart from what is read for any query.
class Recorder final : public kv::AttentionObserver {
 public:
  struct Choice {
    std::vector<std::pair<int, double>> keys;                  // static ones first
    std::vector<std::pair<double, std::vector<double>>> tail;  // weights and mean values
    int n_static = 0, n_exact = 0;
    int fixed_from = 0;
  };
  explicit Recorder(AttentionMeter& meter) : meter_(meter) {}
  void attended(kv::Cache& cache, int layer, const kv::Step& step, const Tensor& q) override {
    meter_.attended(cache, layer, step, q);
    std::vector<float> o(static_cast<size_t>(q.elements()));
    std::vector<float> lse(static_cast<size_t>(q.rows() * q.size(1)));
    auto& of_layer = choices.emplace_back(lse.size());
    cache.attend_as(
        {.keys = 1}, layer, step, q,
        {o.data(), lse.data(), [&](int row, int head, const kv::KeyList& list, int32_t fixed_from) {
           Choice& c = of_layer[static_cast<size_t>(row * q.size(1) + head)];
           c.n_static = list.n_static;
           c.fixed_from = fixed_from;
           for (const KeySegment& s : list.segments) {
             REQUIRE(s.norms == nullptr);
             for (int i = 0; i < s.n; ++i)
               c.keys.emplace_back(s.ids[i], s.bias == nullptr ? 0.0 : s.bias[i]);
             if (s.bias == nullptr) c.n_exact = static_cast<int>(c.keys.size());
           }
           c.n_exact -= c.n_static;
           const float* mass = list.tail.masses;
           for (const MeanRows& rows : list.tail.rows)
             for (int i = 0; i < rows.n; ++i, ++mass) {
               const auto d = static_cast<size_t>(q.size(2));
               std::vector<double> mean(d);
               for (size_t e = 0; e < d; ++e)
                 mean[e] = to_float(rows.means[static_cast<size_t>(i) * d + e]);
               c.tail.emplace_back(*mass * std::exp(double{list.tail.origin}), mean);
             }
         }});
  }

  std::vector<std::vector<Choice>> choices;  // [layers][rows x heads]

 private:
  AttentionMeter& meter_;
};

/// Runs one step of `kRows` rows under full attention behind a prompt.
std::vector<test::Row> run_step(PolicyRig& rig, kv::AttentionObserver* observer) {
  const int slot = rig.cache.create(rig.cache.all_readers());
  rig.prefill(slot, test::tokens(0, kPrompt));
  rig.cache.observe(observer);
  const kv::SeqRows rows[] = {{slot, kRows}};
  const kv::Step step = rig.cache.begin({.rows = rows, .reading = kv::Reading{}});
  auto out = rig.attend(step, test::tokens(kPrompt, kRows));
  rig.cache.commit(step);
  rig.cache.observe(nullptr);
  rig.cache.release(slot);
  return out;
}

recipe::Cache full_cache() { return sparse_cache(CacheKind::full); }

/// Softmax attention over keys with weights, in double.
struct Exact {
  std::vector<double> o;
  double lse = 0;
};
Exact attend(const std::vector<double>& scores, const std::vector<std::vector<double>>& values,
             const std::vector<std::pair<int, double>>& keys) {
  double top = -1e300, sum = 0;
  const auto score = [&](const auto& key) {
    return scores[static_cast<size_t>(key.first)] + key.second;
  };
  for (const auto& key : keys) top = std::max(top, score(key));
  Exact e{std::vector<double>(values[0].size()), 0};
  for (const auto& key : keys) {
    const double w = std::exp(score(key) - top);
    sum += w;
    for (size_t c = 0; c < e.o.size(); ++c) e.o[c] += w * values[static_cast<size_t>(key.first)][c];
  }
  for (double& x : e.o) x /= sum;
  e.lse = top + std::log(sum);
  return e;
}

struct Means {
  double error = 0, lse_error = 0, ranking_loss = 0;
  int n = 0;
};

/// The same measures from the lists alone.
Means brute_force(const kv::Geometry& g, const test::TokenData& data, const Recorder& recorder) {
  Means m;
  const auto d = static_cast<size_t>(g.head_dim);
  const auto vector = [&](test::Part part, int token, int layer, int head) {
    std::vector<float> x(d);
    data(part, token, layer, head, x.data());
    return std::vector<double>(x.begin(), x.end());
  };
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int row = 0; row < kRows; ++row)
      for (int head = 0; head < g.n_heads; ++head) {
        const int n = kPrompt + row + 1, kv_head = head / g.group();
        const auto q = vector(test::Part::q, kPrompt + row, layer, head);
        std::vector<double> scores;
        std::vector<std::vector<double>> values;
        std::vector<std::pair<int, double>> all;
        for (int t = 0; t < n; ++t) {
          const auto k = vector(test::Part::k, t, layer, kv_head);
          values.push_back(vector(test::Part::v, t, layer, kv_head));
          double dot = 0;
          for (size_t c = 0; c < d; ++c) dot += q[c] * k[c];
          scores.push_back(dot / std::sqrt(static_cast<double>(d)));
          all.emplace_back(t, 0.0);
        }
        const auto& choice =
            recorder
                .choices[static_cast<size_t>(layer)][static_cast<size_t>(row * g.n_heads + head)];
        auto keys = choice.keys;
        for (int t = choice.fixed_from; t < n; ++t) keys.emplace_back(t, 0.0);
        const Exact full = attend(scores, values, all);
        Exact policy = attend(scores, values, keys);
        double sum = std::exp(policy.lse);
        for (double& x : policy.o) x *= sum;
        for (const auto& [weight, mean] : choice.tail) {
          sum += weight;
          for (size_t c = 0; c < d; ++c) policy.o[c] += weight * mean[c];
        }
        for (double& x : policy.o) x /= sum;
        policy.lse = std::log(sum);
        double difference = 0, norm = 0;
        for (size_t c = 0; c < d; ++c) {
          difference += (policy.o[c] - full.o[c]) * (policy.o[c] - full.o[c]);
          norm += full.o[c] * full.o[c];
        }
        m.error += std::sqrt(difference / norm);
        m.lse_error += std::abs(policy.lse - full.lse);
        // Static keys are the first tokens here.
        std::vector<double> best(scores.begin() + choice.n_static,
                                 scores.begin() + choice.fixed_from);
        std::ranges::sort(best, std::greater<>());
        double mass = 0, best_mass = 0;
        for (int i = 0; i < choice.n_exact; ++i) {
          const auto key = choice.keys[static_cast<size_t>(choice.n_static + i)].first;
          mass += std::exp(scores[static_cast<size_t>(key)]);
          best_mass += std::exp(best[static_cast<size_t>(i)]);
        }
        m.ranking_loss += 1 - mass / best_mass;
        ++m.n;
      }
  m.error /= m.n;
  m.lse_error /= m.n;
  m.ranking_loss /= m.n;
  return m;
}

NamedPolicy streaming_of_everything() { return streaming(0, 4096); }

}  // namespace

TEST_SUITE("eval/attention_error") {
  TEST_CASE("means are those of attention in double over the same lists") {
    const PolicyRig::Shape shape;
    const auto data = test::cone_data(shape.geometry.head_dim, 4.0f);
    for (const auto& [kind, tail] : {std::pair{CacheKind::quest, recipe::HybridTail::means},
                                     std::pair{CacheKind::hybrid, recipe::HybridTail::means},
                                     std::pair{CacheKind::hybrid, recipe::HybridTail::sampled}}) {
      CAPTURE(recipe::yaml_text(kind));
      CAPTURE(recipe::yaml_text(tail));
      recipe::Cache cache = sparse_cache(kind);
      cache.hybrid.exact = {0.05};
      cache.hybrid.sample = {0.05};
      cache.hybrid.tail = tail;
      PolicyRig rig(shape, {full_cache(), cache}, data);
      AttentionMeter meter(2);
      meter.begin_part();
      Recorder recorder(meter);
      run_step(rig, &recorder);
      const AttentionQuality a = meter.result()[1];
      const Means expected = brute_force(shape.geometry, data, recorder);
      CHECK(a.n_queries == expected.n);
      REQUIRE(a.ranking_loss);
      CHECK(expected.error > 0.01);
      CHECK(expected.ranking_loss > 0.01);
      CHECK(std::abs(a.error.mean - expected.error) <= 1e-5);
      CHECK(std::abs(a.lse_error.mean - expected.lse_error) <= 1e-5);
      CHECK(std::abs(a.ranking_loss->mean - expected.ranking_loss) <= 1e-5);
      double chosen = 0, exact = 0;
      for (const auto& of_layer : recorder.choices)
        for (const Recorder::Choice& choice : of_layer) {
          chosen += static_cast<double>(choice.keys.size()) - choice.n_static;
          exact += choice.n_exact;
        }
      CHECK(a.selected == doctest::Approx(chosen / expected.n));
      CHECK(a.exact == doctest::Approx(exact / expected.n));
      CHECK(a.visible == doctest::Approx(kPrompt + (kRows + 1) / 2.0));
      CHECK(a.index_bytes > 0);
    }
  }

  TEST_CASE("no error where all keys are read; the oracle's ranking loses nothing") {
    recipe::Cache everything = streaming_of_everything().cache,
                  topk = sparse_cache(CacheKind::topk), all = topk,
                  lsh = sparse_cache(CacheKind::lsh);
    topk.topk.ratio = {0.05};
    all.topk.ratio = {1.0};
    const PolicyRig::Shape shape;
    PolicyRig rig(shape, {full_cache(), everything, topk, all, lsh, full_cache()},
                  test::cone_data(shape.geometry.head_dim, 4.0f));
    AttentionMeter meter(6);
    meter.begin_part();
    run_step(rig, &meter);
    const auto a = meter.result();
    CHECK(a[0].n_queries == 0);
    CHECK(a[1].error.mean == 0);
    CHECK(a[1].lse_error.mean == 0);
    CHECK(!a[1].ranking_loss);
    CHECK(a[1].fixed == a[1].visible);
    REQUIRE(a[2].ranking_loss);
    CHECK(a[2].ranking_loss->mean <= 1e-6);
    CHECK(a[2].error.mean > 0.01);
    CHECK(a[2].exact == a[2].selected);
    CHECK(a[3].error.mean <= 1e-5);
    CHECK(a[3].lse_error.mean <= 1e-5);
    CHECK(!a[4].ranking_loss);  // weighted keys alone
    CHECK(a[5].n_queries == 0);
  }

  TEST_CASE("the step itself is as without an observer, and so is what it counts") {
    const auto data = test::cone_data(PolicyRig::Shape{}.geometry.head_dim);
    PolicyRig plain({}, {full_cache(), sparse_cache(CacheKind::hybrid)}, data),
        observed({}, {full_cache(), sparse_cache(CacheKind::hybrid)}, data);
    AttentionMeter meter(2);
    meter.begin_part();
    CHECK(run_step(plain, nullptr) == run_step(observed, &meter));
    CHECK(meter.result()[1].n_queries > 0);
    for (int policy = 0; policy < 2; ++policy)
      CHECK(plain.cache.usage(policy).bytes() == observed.cache.usage(policy).bytes());
  }

  TEST_CASE("a model's windows: rows, heads and sparse layers are counted, documents are parts") {
    const std::vector<NamedPolicy> policies = {full(), sparse("topk"), streaming(4, 64)};
    const auto engine =
        make_engine("tiny-2m", eval::attention_engine_spec(policies, DType::f32, 256, 400));
    eval::Ids ids;
    for (int i = 0; i < 400; ++i) ids.push_back(100 + i * 37 % 3000);
    const eval::Ids shorter(ids.begin() + 50, ids.begin() + 300);
    const std::vector<Window> windows = {{ids, 0}, {shorter, 0}, {shorter, 1}};
    const int before = engine->cache().store().free_pages();
    const auto a = eval::measure_attention(*engine, windows, 40, {});
    CHECK(engine->cache().store().free_pages() == before);
    const auto& c = engine->config();
    CHECK(a[1].n_queries == 3 * 40 * c.n_heads * (c.n_layers - 1));
    CHECK(a[2].n_queries == 3 * 40 * c.n_heads * c.n_layers);
    CHECK(a[1].error.stderr_);
    CHECK(a[1].ranking_loss->mean <= 1e-6);
    CHECK(a[2].error.mean > 0);
    CHECK(a[2].fixed == 68);
    // One document: its windows are the parts. One window: no standard error.
    CHECK(eval::measure_attention(*engine, {windows.data(), 2}, 40, {})[1].error.stderr_);
    CHECK(!eval::measure_attention(*engine, {windows.data(), 1}, 40, {})[1].error.stderr_);
    int64_t done = 0;
    CHECK(eval::measure_attention(*engine, windows, 40, [&](int64_t n) {
            done = n;
            return n < 2;
          }).empty());
    CHECK(done == 2);
  }

  TEST_CASE("windows of different documents come first") {
    const eval::Ids large(100, 7), small(10, 7);
    const std::vector<Window> windows = {
        {large, 0}, {large, 0}, {small, 1}, {large, 2}, {large, 2}};
    const auto documents = [&](int most) {
      std::vector<int> list;
      for (const Window& w : eval::longer_windows(windows, 10, most, "eval.rows"))
        list.push_back(w.document);
      return list;
    };
    CHECK(documents(100) == std::vector{0, 0, 2, 2});
    CHECK(documents(2) == std::vector{0, 2});
    CHECK(documents(3) == std::vector{0, 0, 2});
    CHECK_THROWS_AS(eval::longer_windows(windows, 100, 5, "eval.rows"), Error);
  }
}
