#include <functional>
#include <numeric>

#include "kernels/variants.h"
#include "lsh_head.h"
#include "mean.h"

using namespace tandem;
using namespace tandem::test;

namespace {

using Ids = std::vector<int32_t>;

Ids range(int begin, int end) {
  Ids ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}
int64_t sum_of(const Ids& ids, bool squares = false) {
  int64_t sum = 0;
  for (const int64_t id : ids) sum += squares ? id * id : id;
  return sum;
}
KeySegment plain(const Ids& ids) {
  return {ids.data(), static_cast<int>(ids.size()), nullptr, nullptr};
}
KeySegment sampled(const Ids& ids, const LshHead& head) {
  return {ids.data(), static_cast<int>(ids.size()), nullptr, head.norms()};
}

/// A query with its pages, and what scores lose when they are taken relative to a center.
struct Query {
  const MagicPigData& data;
  Doubles center;
  HeadPages<> pages;
  std::vector<float> q;
  double norm, q_center, shift;

  Query(const MagicPigData& of, Doubles mean)
      : data(of),
        center(std::move(mean)),
        pages(of.k, of.v, of.n, of.d),
        q(to_float_vector(of.q)),
        norm(std::sqrt(dot(of.q.data(), of.q.data(), of.d))),
        q_center(dot(of.q.data(), center.data(), of.d)),
        shift(q_center / std::sqrt(double(of.d))) {}

  /// lse relative to the center, as the golden values have it.
  HeadState attend(Isa isa, std::span<const KeySegment> segments,
                   std::span<const float> log_u = {}) const {
    HeadState s = pages.attend(isa, q, segments, log_u, norm, q_center);
    s.lse -= shift;
    return s;
  }
};

void check_state(const HeadState& got, double lse, const double (&o)[4]) {
  CHECK(std::abs(got.lse - lse) <= 1e-5);
  for (size_t c = 0; c < 4; ++c) CHECK(std::abs(got.o[c] - o[c]) <= 1e-5 * std::abs(o[c]));
}

constexpr int kIntervals = 1024;  // as the policies have it

}  // namespace

TEST_SUITE("kv/magicpig") {
  TEST_CASE("the golden vector, from codes to the merged output") {
    const MagicPigData data(256, 16, 7);
    const Query query(data, data.mean_key(4, 244));
    Ids fixed = range(0, 4);
    for (const int32_t id : range(244, 256)) fixed.push_back(id);
    struct Golden {
      double floor, lse_s, o_s[4], lse, o[4];
    };
    const Golden goldens[] = {{0,
                               21.242136947386737,
                               {-5.127278731, 5.064907402, 1.3920352001, 2.6234732831},
                               23.14217929973469,
                               {-6.1377790643, 4.882854755, 0.7057268236, 3.9546827797}},
                              {1e-4,
                               21.242036632371743,
                               {-5.1272787826, 5.0649074535, 1.3920352266, 2.6234732873},
                               23.14216429703181,
                               {-6.1377942324, 4.8828520314, 0.7057165311, 3.9547027522}}};
    for (const Isa isa : usable_isas()) {
      CAPTURE(isa_name(isa));
      const LshHead head(data.k, 16, 4, 244, query.center, magicpig_projections(9000, 16, 40),
                         {4, 10}, isa);
      const Ids s = head.sample(query.q);
      REQUIRE(s.size() == 56);
      CHECK(Ids(s.begin(), s.begin() + 8) == Ids{7, 11, 24, 27, 45, 46, 47, 52});
      CHECK(Ids(s.end() - 4, s.end()) == Ids{233, 239, 240, 241});
      CHECK(sum_of(s) == 7706);
      CHECK(sum_of(s, true) == 1338026);
      const KeySegment static_keys[] = {plain(fixed)};
      const HeadState t = query.attend(isa, static_keys);
      check_state(t, 22.980175196779722, {-6.3154907719, 4.8508380542, .5850291558, 4.1887960254});
      for (const Golden& g : goldens) {
        CAPTURE(g.floor);
        const std::vector<float> log_u = kv::log_u_table(4, 10, 2, g.floor, kIntervals);
        const KeySegment dynamic[] = {sampled(s, head)};
        const HeadState o = query.attend(isa, dynamic, log_u);
        check_state(o, g.lse_s, g.o_s);
        check_state(merge(o, t), g.lse, g.o);
        // One pass over both is what the policies do with the sinks.
        const KeySegment both[] = {plain(fixed), sampled(s, head)};
        check_state(query.attend(isa, both, log_u), g.lse, g.o);
      }
    }
    const ExactState all = exact_attention(data, range(0, 256), query.center);
    CHECK(all.lse == doctest::Approx(23.14173952116603).epsilon(1e-12));
    CHECK(all.o[0] == doctest::Approx(-6.1382121217).epsilon(1e-10));
  }

  TEST_CASE("4,096 keys: the sample and its error for two shapes") {
    const MagicPigData data(4096, 128, 1);
    const Query query(data, data.mean_key(0, 4096));
    const ExactState exact = exact_attention(data, range(0, 4096), query.center);
    CHECK(exact.lse == doctest::Approx(10.836020247252726).epsilon(1e-10));
    struct Golden {
      LshShape shape;
      int n;
      int64_t sum;
      double lse, error;
    };
    for (const Golden& g : {Golden{{10, 150}, 180, 391337, 10.790429, 0.120996},
                            Golden{{8, 75}, 344, 725563, 10.849044, 0.078872}}) {
      CAPTURE(g.shape.tables);
      const LshHead head(
          data.k, 128, 0, 4096, query.center,
          magicpig_projections(9000, 128, static_cast<size_t>(g.shape.bits * g.shape.tables)),
          g.shape, isa_in_use());
      const Ids s = head.sample(query.q);
      // A projection next to 0 may change its sign in f32, and a key with it.
      CHECK(std::abs(static_cast<int>(s.size()) - g.n) <= 1);
      CHECK(std::abs(sum_of(s) - g.sum) <= 4096);
      const KeySegment dynamic[] = {sampled(s, head)};
      const HeadState o = query.attend(
          isa_in_use(), dynamic, kv::log_u_table(g.shape.bits, g.shape.tables, 2, 0, kIntervals));
      CHECK(o.lse == doctest::Approx(g.lse).epsilon(1e-5));
      CHECK(relative_error(o.o, exact.o) == doctest::Approx(g.error).epsilon(1e-3));
    }
  }

  // Over the draw of the projections, sums weighted by 1 / u are unbiased (Horvitz-Thompson); their
  // quotient and logarithm are not.
  TEST_CASE("4,000 draws of the projections: weighted sums are unbiased") {
    constexpr int kDraws = 4000;
    const MagicPigData data(64, 16, 11);
    const Query query(data, data.mean_key(0, 64));
    const ExactState exact = exact_attention(data, range(0, 64), query.center);
    const std::vector<float> log_u = kv::log_u_table(4, 10, 2, 0, kIntervals);
    double expected_size = 0;
    for (size_t i = 0; i < 64; ++i) {
      Doubles k(16);
      for (size_t c = 0; c < 16; ++c) k[c] = data.k[i * 16 + c] - query.center[c];
      const double cosine =
          dot(data.q.data(), k.data(), 16) / (query.norm * std::sqrt(dot(k.data(), k.data(), 16)));
      expected_size += kv::inclusion_probability(cosine, 4, 10, 2);
    }
    CHECK(expected_size == doctest::Approx(16.284).epsilon(1e-4));
    Mean ratio, size, lse;
    std::vector<Mean> numerator(16);
    for (uint64_t r = 0; r < kDraws; ++r) {
      const LshHead head(data.k, 16, 0, 64, query.center, magicpig_projections(500000 + r, 16, 40),
                         {4, 10}, isa_in_use());
      const Ids s = head.sample(query.q);
      const KeySegment dynamic[] = {sampled(s, head)};
      const HeadState o = query.attend(isa_in_use(), dynamic, log_u);
      const double share = std::exp(o.lse - exact.lse);  // 0 for an empty sample
      ratio.add(share);
      size.add(static_cast<double>(s.size()));
      if (!s.empty()) lse.add(o.lse - exact.lse);
      for (size_t c = 0; c < 16; ++c) numerator[c].add(share * o.o[c]);
    }
    CHECK(std::abs(ratio.mean() - 1) <= 4 * ratio.error());
    CHECK(ratio.mean() == doctest::Approx(0.99849).epsilon(1e-4));
    CHECK(ratio.error() == doctest::Approx(0.00156).epsilon(0.01));
    CHECK(size.mean() == doctest::Approx(16.282).epsilon(1e-4));
    for (size_t c = 0; c < 16; ++c) {
      CAPTURE(c);
      CHECK(std::abs(numerator[c].mean() - exact.o[c]) <= 4.5 * numerator[c].error());
    }
    CHECK(lse.mean() == doctest::Approx(-0.057).epsilon(0.02));
  }

  TEST_CASE("where every key collides, the sample is exact attention") {
    const MagicPigData data(256, 16, 7);
    const Query query(data, data.mean_key(4, 244));
    const ExactState exact = exact_attention(data, range(4, 244), query.center);
    CHECK(exact.lse == doctest::Approx(21.239192826569234).epsilon(1e-12));
    for (const int tables : {64, 200})
      for (const double floor : {0.0, 1e-4}) {
        CAPTURE(tables);
        CAPTURE(floor);
        const LshHead head(data.k, 16, 4, 244, query.center,
                           magicpig_projections(9100, 16, static_cast<size_t>(tables)), {1, tables},
                           isa_in_use());
        const Ids s = head.sample(query.q);
        CHECK(s == range(4, 244));
        const KeySegment dynamic[] = {sampled(s, head)};
        const HeadState o =
            query.attend(isa_in_use(), dynamic, kv::log_u_table(1, tables, 2, floor, kIntervals));
        CHECK(relative_error(o.o, exact.o) <= 1e-5);
        // The floor tilts the result towards the static part by its own size.
        CHECK(std::abs(o.lse - (exact.lse - std::log1p(floor))) <= 1e-5);
      }
  }

  TEST_CASE("the center shifts log-sum-exps and nothing else") {
    const MagicPigData data(256, 16, 7);
    const Ids all = range(0, 256);
    const KeySegment keys[] = {plain(all)};
    const ExactState raw = exact_attention(data, all, Doubles(16, 0.0));
    CHECK(raw.lse == doctest::Approx(-6.972465503592413).epsilon(1e-12));
    const Doubles centers[] = {Doubles(16, 0.0), data.mean_key(4, 244), data.mean_key(0, 1),
                               normals(77, 16)};
    for (const Doubles& center : centers) {
      const Query query(data, center);
      const ExactState shifted = exact_attention(data, all, center);
      CHECK(shifted.lse == doctest::Approx(raw.lse - query.shift).epsilon(1e-12));
      for (size_t c = 0; c < 16; ++c)
        CHECK(std::abs(shifted.o[c] - raw.o[c]) <= 1e-12 * std::abs(raw.o[c]) + 1e-13);
      const HeadState o = query.attend(isa_in_use(), keys);
      CHECK(relative_error(o.o, raw.o) <= 1e-5);
      CHECK(std::abs(o.lse - shifted.lse) <= 1e-5);
    }
  }

  TEST_CASE("parts of the keys merge to all of them, in any order") {
    const MagicPigData data(256, 16, 7);
    const Query query(data, Doubles(16, 0.0));
    const ExactState exact = exact_attention(data, range(0, 256), query.center);
    const auto part = [&](int begin, int end) {
      const Ids ids = range(begin, end);
      const KeySegment keys[] = {plain(ids)};
      return query.attend(isa_in_use(), keys);
    };
    const HeadState a = part(0, 4), b = part(4, 244), c = part(244, 256), none = part(9, 9);
    CHECK(none.lse == -std::numeric_limits<double>::infinity());
    for (const HeadState& merged :
         {merge(merge(a, b), c), merge(a, merge(b, c)), merge(merge(c, none), merge(a, b))}) {
      CHECK(relative_error(merged.o, exact.o) <= 1e-5);
      CHECK(std::abs(merged.lse - exact.lse) <= 1e-5);
    }
    const HeadState empty = merge(none, none);
    CHECK(empty.lse == none.lse);
    for (const float x : empty.o) CHECK(x == 0.0f);
  }

  TEST_CASE("bf16: near f64 on the same numbers and the same sample") {
    MagicPigData data(4096, 128, 1);
    const auto round = [](Doubles& x) {
      for (double& y : x) y = to_float(to_bf16(static_cast<float>(y)));
    };
    round(data.q);
    round(data.k);
    round(data.v);
    const Query query(data, data.mean_key(0, 4096));
    const LshHead head(data.k, 128, 0, 4096, query.center, magicpig_projections(9000, 128, 600),
                       {8, 75}, isa_in_use());
    const Ids s = head.sample(query.q);
    REQUIRE(s.size() > 300);
    Doubles want(128, 0.0);
    double sum = 0, v_max = 0;
    for (const int32_t id : s) {
      Doubles k(128);
      for (size_t c = 0; c < 128; ++c)
        k[c] = data.k[static_cast<size_t>(id) * 128 + c] - query.center[c];
      const double product = dot(data.q.data(), k.data(), 128);
      const double cosine = product / (query.norm * std::sqrt(dot(k.data(), k.data(), 128)));
      const double weight = std::exp(product / std::sqrt(128.0)) /
                            (kv::inclusion_probability(cosine, 8, 75, 2) + 1e-4);
      sum += weight;
      for (size_t c = 0; c < 128; ++c) {
        const double v = data.v[static_cast<size_t>(id) * 128 + c];
        v_max = std::max(v_max, std::abs(v));
        want[c] += weight * v;
      }
    }
    std::vector<bf16> q;
    for (const double x : data.q) q.push_back(to_bf16(static_cast<float>(x)));
    const HeadPages<bf16> pages(data.k, data.v, data.n, data.d);
    const std::vector<float> log_u = kv::log_u_table(8, 75, 2, 1e-4, kIntervals);
    const KeySegment dynamic[] = {sampled(s, head)};
    for (const Isa isa : usable_isas()) {
      CAPTURE(isa_name(isa));
      const HeadState o = pages.attend(isa, q, dynamic, log_u, query.norm, query.q_center);
      CHECK(std::abs(o.lse - query.shift - std::log(sum)) <= 2e-3);
      for (size_t c = 0; c < 128; ++c) CHECK(std::abs(o.o[c] - want[c] / sum) <= 4e-3 * v_max);
    }
  }
}
