// Samples of the keys that a choice by codes leaves: the CPU's, from equal scores.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "gpu/device_buffer.h"
#include "kernels/code/tail_means.h"
#include "kernels/selection/sample_tail.h"
#include "kernels/selection/tail_numbers.h"
#include "kv/policies/hybrid_tail.h"
#include "mean.h"
#include "ops/selection.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kSinks = 3, kLayer = 5;
constexpr uint64_t kSeed = 0x1234567890;
constexpr float kInf = std::numeric_limits<float>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Setting {
  std::vector<int> indexed = {3000};  // keys of each slot, a sequence each
  std::vector<int> rows = {1};
  int padding = 0;  // rows of no sequence behind them
  double sample = 0.02, exact = 0.025;
  bool misleading = false;  // the scores that the scale is found from are among the least
};

/// The score of a list's key.
using Scorer = std::function<float(int list, int key)>;

/// Lists of chosen keys, and scores of the others.
struct Case {
  Setting x;
  int max_keys, n_rows, n_lists;
  int64_t stride, score_stride, mass_stride;
  std::vector<int32_t> slot, row_begin = {0}, pos, ends, ids, count;
  std::vector<float> scores, threshold, exact_mass;

  explicit Case(const Setting& s, const Scorer& score = {})
      : x(s),
        max_keys(*std::ranges::max_element(s.indexed)),
        n_rows(std::accumulate(s.rows.begin(), s.rows.end(), s.padding)),
        n_lists(n_rows * kHeads),
        stride(kSinks + most_chosen(max_keys) +
               most_sampled(static_cast<float>(s.sample * max_keys))),
        score_stride((max_keys + 511) / 512 * 512),
        mass_stride(score_stride / kMeanKeys),
        ids(at(n_lists * stride), -7),
        count(at(n_lists)),
        scores(at(n_lists * score_stride), kInf),
        threshold(at(n_lists), kInf),
        exact_mass(at(n_lists)) {
    const int n_seqs = static_cast<int>(s.indexed.size());
    for (int i = 0; i < n_seqs; ++i) {
      slot.push_back(n_seqs - 1 - i);  // slots are not the sequences' numbers
      ends.push_back(kSinks + s.indexed[at(i)]);
      row_begin.push_back(row_begin.back() + s.rows[at(i)]);
    }
    for (int row = 0; row < n_rows; ++row) pos.push_back(5000 + 7 * row);
    for (int list = 0; list < n_lists; ++list)
      if (const int n = keys_of(list); n > 0) choose(list, n, score);
  }

  int most_chosen(int n) const {
    return std::min(n, std::max(64, static_cast<int>(std::lround(x.exact * n))));
  }
  /// Indexed keys of a list; 0 where its row belongs to no sequence.
  int keys_of(int list) const {
    const int row = list / kHeads;
    for (size_t i = 0; i < x.indexed.size(); ++i)
      if (row >= row_begin[i] && row < row_begin[i + 1]) return x.indexed[at(slot[i])];
    return 0;
  }
  std::vector<float> scores_of(int list) const {
    const auto first = scores.begin() + list * score_stride;
    return {first, first + keys_of(list)};
  }

 private:
  void choose(int list, int n, const Scorer& score_of) {
    PhiloxStream draw(9, static_cast<uint32_t>(list));
    float* const score = scores.data() + list * score_stride;
    for (int i = 0; i < n; ++i) {
      score[i] = static_cast<float>(6 * (draw.uniform() + draw.uniform() + draw.uniform()) - 12);
      if (score_of) score[i] = score_of(list, i);
      if (x.misleading) score[i] = i % scale_step(n) == 0 ? -20.0f : score[i] / 4;
    }
    std::vector<int> best(at(n));
    std::iota(best.begin(), best.end(), 0);
    std::ranges::sort(best, [&](int a, int b) { return score[a] > score[b]; });
    best.resize(at(most_chosen(n)));
    threshold[at(list)] = score[best.back()];
    for (const int i : best) exact_mass[at(list)] += std::exp(score[i] - threshold[at(list)]);
    std::ranges::sort(best);
    int32_t* const to = ids.data() + list * stride;
    std::iota(to, to + kSinks, 0);
    for (size_t i = 0; i < best.size(); ++i) {
      score[best[i]] = -kInf;
      to[at(kSinks) + i] = kSinks + best[i];
    }
    count[at(list)] = kSinks + static_cast<int>(best.size());
    // What is left may have better scores by signs than what was chosen by all bits.
    for (int i = 5; i < n && !x.misleading && !score_of; i += 97)
      if (score[i] > -kInf) score[i] = threshold[at(list)] + 0.5f;
  }
};

struct Sampled {
  std::vector<int32_t> ids, count;
  std::vector<float> bias, masses;
};

Sampled draw_on_gpu(const Case& c, const TailErrorParams& by_error = {}) {
  const DeviceBuffer slot(c.slot), begin(c.row_begin), pos(c.pos), ends(c.ends), ids(c.ids),
      count(c.count), scores(c.scores), threshold(c.threshold), bias(c.ids.size() * sizeof(float)),
      masses(at(c.n_lists * c.mass_stride) * sizeof(float));
  ops::draw_tail({.ids = ids.as<int32_t>(),
                  .bias = bias.as<float>(),
                  .count = count.as<int32_t>(),
                  .stride = c.stride,
                  .masses = masses.as<float>(),
                  .mass_stride = c.mass_stride,
                  .scores = scores.as<float>(),
                  .threshold = threshold.as<float>(),
                  .score_stride = c.score_stride,
                  .ends = ends.as<int32_t>(),
                  .begin = kSinks,
                  .choosing = {.slot = slot.as<int32_t>(),
                               .row_begin = begin.as<int32_t>(),
                               .pos = pos.as<int32_t>(),
                               .n_seqs = static_cast<int>(c.slot.size()),
                               .rows = {0, c.n_rows}},
                  .n_heads = kHeads,
                  .n_kv_heads = kKvHeads,
                  .layer = kLayer,
                  .max_keys = c.max_keys,
                  .sample = c.x.sample,
                  .seed = kSeed,
                  .by_error = by_error},
                 queue().stream());
  return {ids.vector<int32_t>(), count.vector<int32_t>(), bias.vector<float>(),
          masses.vector<float>()};
}

/// The CPU's random numbers for the keys of a list.
std::vector<float> draws_of(const Case& c, int list) {
  std::vector<float> draws(at(c.keys_of(list)));
  const int kv_head = list % kHeads / (kHeads / kKvHeads);
  const uint32_t key =
      draw4(kSeed, static_cast<uint32_t>(c.pos[at(list / kHeads)]),
            static_cast<uint32_t>(kLayer * kKvHeads + kv_head), DrawPurpose::keys)[1];
  ops::draw_exponentials({.draws = draws.data(), .key = key}, {0, c.keys_of(list)});
  return draws;
}

/// What the CPU's policy makes of one list (policies/hybrid_tail.cpp).
struct Expected {
  std::vector<int32_t> ids;
  std::vector<float> bias;
  std::vector<double> masses, estimates;  // with and without the corrections
};
Expected draw_on_cpu(const Case& c, int list) {
  const std::vector<float> scores = c.scores_of(list);
  const size_t n = scores.size();
  const std::vector<float> draws = draws_of(c, list);
  Expected e{std::vector<int32_t>(n + 16), std::vector<float>(n + 16), {}, {}};
  const auto m =
      at(ops::sample_tail({.ids = e.ids.data(),
                           .bias = e.bias.data(),
                           .scores = scores.data(),
                           .draws = draws.data(),
                           .n = static_cast<int>(n),
                           .first_id = kSinks,
                           .threshold = kInf,
                           .gain = 1,
                           .wanted = static_cast<float>(c.x.sample * static_cast<double>(n))}));
  e.ids.resize(m);
  e.bias.resize(m);
  e.estimates.resize((n + kMeanKeys - 1) / kMeanKeys);
  const double threshold = c.threshold[at(list)];
  const auto estimate = [&](size_t i) {
    return std::exp(std::min(0.0, double{scores[i]} - threshold));
  };
  for (size_t i = 0; i < n; ++i) e.estimates[i / kMeanKeys] += estimate(i);
  e.masses = e.estimates;
  for (size_t j = 0; j < m; ++j) {
    const auto i = at(e.ids[j] - kSinks);
    e.masses[i / kMeanKeys] -= estimate(i) * std::exp(double{e.bias[j]});
  }
  return e;
}

/// Checks every list of a case. Returns how many keys of one are sampled at most.
int check(const Setting& s) {
  CAPTURE(s.sample);
  CAPTURE(s.indexed[0]);
  const Case c(s);
  const Sampled got = draw_on_gpu(c);
  int most = 0;
  for (int list = 0; list < c.n_lists; ++list) {
    CAPTURE(list);
    const int n = c.keys_of(list), before = c.count[at(list)], after = got.count[at(list)];
    const auto ids = got.ids.begin() + list * c.stride;
    const auto bias = got.bias.begin() + list * c.stride;
    CHECK(std::equal(ids, ids + before, c.ids.begin() + list * c.stride));
    CHECK(std::all_of(bias, bias + before, [](float b) { return b == 0; }));
    if (before == kSinks + n || n == 0) {
      CHECK(after == before);
      for (int run = 0; run * kMeanKeys < n; ++run)
        CHECK(got.masses[at(list * c.mass_stride + run)] == 0);
      continue;
    }
    const Expected e = draw_on_cpu(c, list);
    REQUIRE(std::vector<int32_t>(ids + before, ids + after) == e.ids);
    CHECK(std::vector<float>(bias + before, bias + after) == e.bias);
    most = std::max(most, after - before);
    // Corrections are differences of numbers of these sizes.
    double worst = 0, largest = 0;
    for (size_t r = 0; r < e.masses.size(); ++r) {
      worst = worse(worst, std::abs(got.masses[at(list * c.mass_stride) + r] - e.masses[r]));
      largest = std::max({largest, e.estimates[r], std::abs(e.masses[r])});
    }
    CHECK(worst <= 1e-5 * largest);
  }
  const Sampled again = draw_on_gpu(c);
  CHECK(again.ids == got.ids);
  CHECK(again.bias == got.bias);
  CHECK(again.masses == got.masses);
  return most;
}

/// Keys and queries of one sequence, whose scaled products scores estimate, less a center.
struct Keys {
  static constexpr float kCenter = 0.7f;
  int d, n_pages;
  ActBuffer q, k;
  std::vector<int32_t> pages;

  Keys(DType dtype, int width, int n_rows, int n_tokens)
      : d(width),
        n_pages((n_tokens + kPageTokens - 1) / kPageTokens),
        q(dtype, at(int64_t{n_rows} * kHeads * d)),
        k(dtype, at(int64_t{n_pages} * kKvHeads * kPageTokens * d)),
        pages(at(n_pages)) {
    PhiloxStream stream(2, static_cast<uint32_t>(width));
    fill(q, stream, 2.0f);
    fill(k, stream, 1.5f);
    std::iota(pages.rbegin(), pages.rend(), 0);
  }
  float score(int list, int key) {
    const int token = kSinks + key, page = pages[at(token / kPageTokens)];
    const int kv_head = list % kHeads / (kHeads / kKvHeads);
    const int64_t row = int64_t{page * kKvHeads + kv_head} * kPageTokens + token % kPageTokens;
    double dot = 0;
    for (int c = 0; c < d; ++c)
      dot += double{q.get(at(int64_t{list} * d + c))} * k.get(at(row * d + c));
    return static_cast<float>(dot / std::sqrt(double(d)) - kCenter + 0.2 * std::sin(7.0 * key));
  }
  /// What the CPU's policy makes of a list.
  kv::KeyList add_tail(const Case& c, int list, const recipe::Hybrid& spec, Expected& to) {
    const std::vector<float> scores = c.scores_of(list), draws = draws_of(c, list);
    const size_t n = scores.size(), bytes = dtype_bytes(q.type);
    const int kv_head = list % kHeads / (kHeads / kKvHeads);
    const Tensor pool(k.data(), k.type, {n_pages, kKvHeads, kPageTokens, d});
    to = {std::vector<int32_t>(n + 16), std::vector<float>(n + 16), {}, {}};
    std::vector<float> masses((n + kMeanKeys - 1) / kMeanKeys);
    kv::KeyList result;
    const kv::KeyQuery query{
        .layer = kLayer,
        .position = c.pos[at(list / kHeads)],
        .kv_head = kv_head,
        .keys = kv::KeyRows(pool, pages.data(), kv_head),
        .n_heads = 1,
        .q = static_cast<const char*>(q.data()) + at(int64_t{list} * d) * bytes};
    kv::add_tail({.spec = spec,
                  .query = query,
                  .head = 0,
                  .scores = scores,
                  .threshold = c.threshold[at(list)],
                  .origin = kCenter,
                  .first_id = kSinks,
                  .rows = {},
                  .exact_mass = c.exact_mass[at(list)],
                  .scale = 1 / std::sqrt(static_cast<double>(d)),
                  .draws = draws.data(),
                  .masses = masses.data(),
                  .ids = to.ids.data(),
                  .bias = to.bias.data()},
                 result);
    to.ids.resize(at(result.n_keys()));
    to.bias.resize(at(result.n_keys()));
    to.masses.assign(masses.begin(), masses.end());
    return result;
  }
};

/// Budgets by error: errors and samples are the CPU's, but for rounding of how many are wanted.
void check_error(DType dtype, int d, double aim, double most) {
  CAPTURE(dtype_name(dtype));
  CAPTURE(d);
  CAPTURE(aim);
  constexpr int kRows = 3, kIndexed = 3000;
  Keys keys(dtype, d, kRows, kSinks + kIndexed);
  // Room for as many as are wanted first.
  const Case c({.indexed = {kIndexed}, .rows = {kRows}, .sample = std::max(most, 0.05)},
               [&](int list, int key) { return keys.score(list, key); });
  std::vector<float> origin;
  for (const float threshold : c.threshold) origin.push_back(threshold + Keys::kCenter);
  const DeviceBuffer origins(origin), exact_mass(c.exact_mass), pages(keys.pages),
      q = on_device(keys.q), k = on_device(keys.k), totals(std::vector<unsigned long long>(2)),
      error(at(c.n_lists) * sizeof(float));
  const Sampled got = draw_on_gpu(c, {.aim = aim,
                                      .origin = origins.as<float>(),
                                      .exact_mass = exact_mass.as<float>(),
                                      .error = error.as<float>(),
                                      .totals = totals.as<unsigned long long>(),
                                      .q = q.raw(),
                                      .k_pool = k.raw(),
                                      .page_table = pages.as<int32_t>(),
                                      .max_pages = keys.n_pages,
                                      .d = d,
                                      .scale = 1 / std::sqrt(static_cast<double>(d)),
                                      .dtype = dtype});
  const std::vector<float> errors = error.vector<float>();
  recipe::Hybrid spec;
  spec.tail = recipe::HybridTail::sampled;
  spec.budget = recipe::HybridBudget::error;
  spec.sample = {c.x.sample};
  spec.error = aim;
  int equal = 0;
  double sum = 0;
  for (int list = 0; list < c.n_lists; ++list) {
    CAPTURE(list);
    Expected e;
    const kv::KeyList want = keys.add_tail(c, list, spec, e);
    sum += errors[at(list)];
    const auto ids = got.ids.begin() + list * c.stride;
    const auto bias = got.bias.begin() + list * c.stride;
    const int before = c.count[at(list)], after = got.count[at(list)];
    std::vector<int32_t> apart;
    std::ranges::set_symmetric_difference(std::vector<int32_t>(ids + before, ids + after), e.ids,
                                          std::back_inserter(apart));
    CHECK(apart.size() <= 2);
    CHECK(errors[at(list)] == doctest::Approx(want.error).epsilon(apart.empty() ? 1e-3 : 0.05));
    if (!apart.empty()) continue;
    ++equal;
    double worst = 0, largest = 0;
    for (size_t i = 0; i < e.bias.size(); ++i)
      worst = worse(worst, std::abs(bias[before + int64_t(i)] - e.bias[i]));
    CHECK(worst <= 1e-4);
    worst = 0;
    for (size_t r = 0; r < e.masses.size(); ++r) {
      worst = worse(worst, std::abs(got.masses[at(list * c.mass_stride) + r] - e.masses[r]));
      largest = std::max(largest, std::abs(e.masses[r]) + 1);
    }
    CHECK(worst <= 1e-3 * largest);
  }
  CHECK(equal * 10 >= c.n_lists * 9);
  const auto all = totals.vector<unsigned long long>();
  CHECK(all[1] == static_cast<unsigned long long>(c.n_lists));
  CHECK(double(all[0]) * kErrorUnit == doctest::Approx(sum).epsilon(1e-5));
}

}  // namespace

TEST_SUITE("gpu/draw_tail") {
  TEST_CASE("ids and biases are the CPU's, masses near: ragged steps of any length") {
    for (const Setting& s : std::vector<Setting>{
             {},
             {.indexed = {700, 0, 5, 65, 2000}, .rows = {2, 1, 1, 1, 3}, .padding = 2},
             {.indexed = {257}, .rows = {3}, .sample = 0.3},
             {.indexed = {1024, 1025, 4096}, .rows = {1, 1, 1}, .sample = 0.001},
             {.indexed = {1500}, .rows = {1}, .sample = 1},
             {.indexed = {900}, .rows = {1}, .exact = 1},
             {.indexed = {40000, 131072}, .rows = {2, 1}, .sample = 0.0125}})
      (void)check(s);
  }

  TEST_CASE("a scale that misleads: no more than there is room for") {
    const int most = check({.indexed = {20000}, .rows = {2}, .sample = 0.01, .misleading = true});
    CHECK(most > 1.5 * 200);
    CHECK(most <= most_sampled(200));
  }

  TEST_CASE("over positions, chosen keys, means' masses and sample give unbiased sums") {
    constexpr int kRows = 1000;
    for (const double share : {0.02, 0.3}) {
      CAPTURE(share);
      Case c({.indexed = {2000}, .rows = {kRows}, .sample = share});
      // The same keys at every position.
      for (int list = kHeads; list < c.n_lists; ++list) {
        const int same = list % kHeads;
        std::copy_n(c.scores.begin() + same * c.score_stride, c.score_stride,
                    c.scores.begin() + list * c.score_stride);
        std::copy_n(c.ids.begin() + same * c.stride, c.stride, c.ids.begin() + list * c.stride);
        c.threshold[at(list)] = c.threshold[at(same)];
      }
      const Sampled got = draw_on_gpu(c);
      for (int head = 0; head < kHeads; ++head) {
        CAPTURE(head);
        const std::vector<float> scores = c.scores_of(head);
        const double threshold = c.threshold[at(head)];
        // True weights stray from the estimated ones; one value for each run, so that means are it.
        const auto weight = [&](size_t i) {
          return std::exp(double{scores[i]} + 0.5 * std::cos(3.0 * static_cast<double>(i)));
        };
        const auto value = [](size_t run) { return std::sin(2.0 + static_cast<double>(run)); };
        double all = 0, all_values = 0;
        for (size_t i = 0; i < scores.size(); ++i) {
          all += weight(i);
          all_values += weight(i) * value(i / kMeanKeys);
        }
        Mean sum, values, size;
        for (int row = 0; row < kRows; ++row) {
          const int list = row * kHeads + head, before = c.count[at(head)];
          double x = 0, of_values = 0;
          for (int j = before; j < got.count[at(list)]; ++j) {
            const auto i = at(got.ids[at(list * c.stride + j)] - kSinks);
            const double w = weight(i) * std::exp(double{got.bias[at(list * c.stride + j)]});
            x += w;
            of_values += w * value(i / kMeanKeys);
          }
          for (int run = 0; run * kMeanKeys < 2000; ++run) {
            const double w = got.masses[at(list * c.mass_stride + run)] * std::exp(threshold);
            x += w;
            of_values += w * value(at(run));
          }
          sum.add(x);
          values.add(of_values);
          size.add(got.count[at(list)] - before);
        }
        CHECK(sum.is(all, 1e-5));
        CHECK(values.is(all_values, 1e-5));
        CHECK(size.mean() == doctest::Approx(share * 2000).epsilon(0.15));
      }
    }
  }

  TEST_CASE("budgets by error: the CPU's samples and errors, and their sum") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 80, 256})
        for (const double aim : {0.5, 0.03, 0.01, 1e-5}) check_error(dtype, d, aim, 0.4);
    check_error(DType::f32, 128, 0.01, 1);
  }
}
