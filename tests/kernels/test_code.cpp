#include "kernels/code/code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/code/key_ranks.h"
#include "kernels/code/tail_means.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class Fn>
Fn* variant(Isa isa, Fn* scalar, Fn* avx2, Fn* avx512) {
  return isa == Isa::scalar ? scalar : isa == Isa::avx2 ? avx2 : avx512;
}

float normal(PhiloxStream& stream) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += stream.uniform();
  return static_cast<float>(sum - 6);
}

std::vector<float> normals(size_t n, uint32_t seed, float size = 1) {
  PhiloxStream stream(21, seed);
  std::vector<float> x(n);
  for (float& v : x) v = size * normal(stream);
  return x;
}

/// Codes of random rows, written in two calls, and queries against them.
struct CodeCase {
  int dims, bits, n, n_queries;
  CodeUnits units;
  std::vector<float> rows, shares, rotated, query_shares;
  std::vector<uint8_t> groups, low, sums;
  std::vector<int8_t> q;
  std::vector<CodeQuery> queries;

  CodeCase(int dims_, int bits_, int n_, int n_queries_)
      : dims(dims_),
        bits(bits_),
        n(n_),
        n_queries(n_queries_),
        rows(normals(static_cast<size_t>(n_ * dims_), 1, 1.5f)),
        shares(normals(static_cast<size_t>(n_), 2, 4)),
        rotated(normals(static_cast<size_t>(n_queries_ * dims_), 3)),
        query_shares(normals(static_cast<size_t>(n_queries_), 4)),
        groups(static_cast<size_t>((n_ + kCodeKeys - 1) / kCodeKeys * code_group_bytes(dims_))),
        low(static_cast<size_t>(n_ * code_low_bytes(dims_, bits_))),
        sums(static_cast<size_t>(n_queries_ * dims_ * 4)),
        q(static_cast<size_t>(n_queries_ * dims_)) {
    const auto width = static_cast<size_t>(dims);
    if (n > 3) std::fill_n(rows.begin() + 2 * dims, dims, 0.0f);  // one key at the center
    float most = 0, most_share = 0;
    for (int i = 0; i < n; ++i) {
      double square = 0;
      for (size_t c = 0; c < width; ++c)
        square += std::pow(rows[static_cast<size_t>(i) * width + c], 2);
      most = std::max(most, static_cast<float>(std::sqrt(square)));
      most_share = std::max(most_share, std::abs(shares[static_cast<size_t>(i)]));
    }
    units = {code_scale_unit(most, dims, bits), most_share / 127};
    const CodeRowsParams p{.groups = groups.data(),
                           .low = low.data(),
                           .rows = rows.data(),
                           .shares = shares.data(),
                           .units = units,
                           .dims = dims,
                           .bits = bits,
                           .first = 0};
    code_rows(p, {0, n / 3});
    code_rows(p, {n / 3, n});
    for (int j = 0; j < n_queries; ++j)
      queries.push_back(code_query(rotated.data() + j * dims, query_shares[static_cast<size_t>(j)],
                                   0.125f, units, dims, bits, sums.data() + j * dims * 4,
                                   q.data() + j * dims));
  }
  size_t stride() const { return static_cast<size_t>((n + kCodeKeys - 1) / kCodeKeys * kCodeKeys); }
  std::vector<float> scan(CodeScanFn* fn, Range keys) {
    std::vector<float> scores(stride() * static_cast<size_t>(n_queries), -77.0f);
    fn({.scores = scores.data(),
        .score_stride = static_cast<int64_t>(stride()),
        .groups = groups.data(),
        .queries = queries.data(),
        .n_queries = n_queries,
        .dims = dims},
       keys);
    return scores;
  }
  double exact(int j, int i) const {
    double sum = double{query_shares[static_cast<size_t>(j)]} * shares[static_cast<size_t>(i)];
    for (int c = 0; c < dims; ++c)
      sum += double{rotated[static_cast<size_t>(j * dims + c)]} *
             rows[static_cast<size_t>(i * dims + c)];
    return 0.125 * sum;
  }
  std::vector<float> refine(CodeRefineFn* fn, const std::vector<float>& scanned, int j,
                            const std::vector<int32_t>& keys, std::vector<float>& refined) {
    std::vector<float> scores(scanned.begin() + static_cast<int64_t>(stride()) * j,
                              scanned.begin() + static_cast<int64_t>(stride()) * (j + 1));
    refined.assign(keys.size(), -77.0f);
    fn({.refined = refined.data(),
        .scores = scores.data(),
        .keys = keys.data(),
        .n = static_cast<int>(keys.size()),
        .first = 0,
        .groups = groups.data(),
        .low = low.data(),
        .query = &queries[static_cast<size_t>(j)],
        .dims = dims,
        .bits = bits});
    return scores;
  }
};

}  // namespace

TEST_SUITE("kernels/code") {
  TEST_CASE("every scan equals the reference, bit for bit") {
    for (const int dims : {32, 64, 96, 128, 256})
      for (const int n : {1, 127, 128, 129, 1000})
        for (const int n_queries : {1, 2, 3, 4, 7}) {
          CodeCase c(dims, 1 + n % 3, n, n_queries);
          const auto want = c.scan(code_scan_ref, {0, n});
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            CAPTURE(dims);
            CAPTURE(n);
            CAPTURE(n_queries);
            const auto got =
                c.scan(variant(isa, code_scan_scalar, code_scan_avx2, code_scan_avx512), {0, n});
            for (int j = 0; j < n_queries; ++j)
              for (int i = 0; i < n; ++i) {
                const size_t at = static_cast<size_t>(j) * c.stride() + static_cast<size_t>(i);
                REQUIRE(got[at] == want[at]);
              }
          }
        }
  }

  TEST_CASE("parts of the keys, and nothing beside them") {
    CodeCase c(64, 3, 1000, 5);
    for (const Range keys : {Range{0, 128}, Range{128, 200}, Range{384, 1000}, Range{256, 256}})
      for (const Isa isa : usable_isas()) {
        const auto want = c.scan(code_scan_ref, keys);
        const auto got =
            c.scan(variant(isa, code_scan_scalar, code_scan_avx2, code_scan_avx512), keys);
        for (size_t i = 0; i < got.size(); ++i) {
          const int key = static_cast<int>(i % c.stride());
          if (key >= keys.end && key < (keys.end + 127) / 128 * 128) continue;
          REQUIRE(got[i] == want[i]);
        }
      }
  }

  TEST_CASE("refined scores equal the reference, bit for bit") {
    for (const int dims : {32, 64, 96, 128, 160})
      for (const int bits : {2, 3}) {
        CodeCase c(dims, bits, 700, 3);
        const auto scanned = c.scan(code_scan_ref, {0, 700});
        std::vector<int32_t> keys;
        for (int i = 1; i < 700; i += 1 + i % 5) keys.push_back(i);
        for (int j = 0; j < 3; ++j) {
          std::vector<float> want_refined, refined;
          const auto want = c.refine(code_refine_ref, scanned, j, keys, want_refined);
          for (const Isa isa : usable_isas()) {
            CAPTURE(isa_name(isa));
            CAPTURE(dims);
            CAPTURE(bits);
            const auto got =
                c.refine(variant(isa, code_refine_scalar, code_refine_avx2, code_refine_avx512),
                         scanned, j, keys, refined);
            REQUIRE(got == want);
            REQUIRE(refined == want_refined);
          }
        }
      }
  }

  TEST_CASE("scores estimate the products: unbiased, and closer with every bit") {
    for (const int dims : {64, 128}) {
      double error[4] = {}, bias[4] = {}, size = 0;
      constexpr int kKeys = 2000, kQueries = 8;
      for (const int bits : {1, 2, 3}) {
        CodeCase c(dims, bits, kKeys, kQueries);
        const auto scanned = c.scan(code_scan_ref, {0, kKeys});
        std::vector<int32_t> keys(kKeys);
        for (int i = 0; i < kKeys; ++i) keys[static_cast<size_t>(i)] = i;
        size = 0;
        for (int j = 0; j < kQueries; ++j) {
          std::vector<float> refined(scanned.begin() + static_cast<int64_t>(c.stride()) * j,
                                     scanned.begin() + static_cast<int64_t>(c.stride()) * (j + 1));
          if (bits > 1) c.refine(code_refine_ref, scanned, j, keys, refined);
          for (int i = 0; i < kKeys; ++i) {
            const double exact = c.exact(j, i), off = refined[static_cast<size_t>(i)] - exact;
            error[bits] += off * off;
            bias[bits] += off * exact;
            size += exact * exact;
          }
        }
        CAPTURE(dims);
        CAPTURE(bits);
        // The variance that beyond.md 1.5 predicts for unit vectors, of the part that has codes;
        // the shares along the axis are 16 of every 16 + 2.25 dims of a key's square.
        const double lost[] = {0, 0.3634, 0.1188, 0.0374};
        const double predicted =
            lost[bits] / (1 - lost[bits]) / (dims - 1) * (dims * dims * 2.25) / (dims * 2.25 + 16);
        CHECK(error[bits] / size <= 1.25 * predicted);
        CHECK(std::abs(bias[bits] / size) <= 0.02);
      }
      CHECK(error[2] < 0.35 * error[1]);
      CHECK(error[3] < 0.4 * error[2]);
    }
  }

  TEST_CASE("a key at the center scores its share alone, and no query scores nothing") {
    CodeCase c(64, 3, 300, 2);
    const float score = c.scan(code_scan_ref, {0, 300})[2];
    CHECK(std::abs(score - c.queries[0].axis_gain * std::nearbyint(c.shares[2] / c.units.axis)) <=
          0.02f);
    std::vector<float> none(64);
    std::vector<uint8_t> sums(256);
    std::vector<int8_t> q(64);
    const CodeQuery zero = code_query(none.data(), 0, 1, c.units, 64, 3, sums.data(), q.data());
    CHECK(zero.bias == 0);
    CHECK(zero.sign_gain == 0);
    // No norm at all: units of nothing.
    CHECK(code_scale_unit(0, 64, 3) == 0);
  }

  TEST_CASE("rotations keep products, and variants agree") {
    for (const int dims : {32, 64, 96, 128, 160}) {
      PhiloxStream stream(22);
      std::vector<float> signs(static_cast<size_t>(2 * dims));
      for (float& s : signs) s = stream.uniform() < 0.5 ? -1.0f : 1.0f;
      const std::vector<float> from = normals(static_cast<size_t>(5 * dims), 5);
      std::vector<float> want = from;
      rotate_rows_ref({.rows = want.data(), .signs = signs.data(), .dims = dims}, {0, 5});
      for (const Isa isa : usable_isas()) {
        CAPTURE(isa_name(isa));
        CAPTURE(dims);
        std::vector<float> got = from;
        variant(isa, rotate_rows_scalar, rotate_rows_avx2, rotate_rows_avx512)(
            {.rows = got.data(), .signs = signs.data(), .dims = dims}, {0, 5});
        for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) <= 2e-6f);
      }
      const auto dot = [&](const std::vector<float>& x, int a, int b) {
        double sum = 0;
        for (int c = 0; c < dims; ++c)
          sum +=
              double{x[static_cast<size_t>(a * dims + c)]} * x[static_cast<size_t>(b * dims + c)];
        return sum;
      };
      for (int b = 0; b < 5; ++b) CHECK(std::abs(dot(want, 1, b) - dot(from, 1, b)) <= 1e-4);
    }
  }
}

TEST_SUITE("kernels/tail_means") {
  TEST_CASE("a group's references are those of a sample at even distances, its ranks the largest") {
    for (const int n : {16, 31, 65, 2047, 2048, 2079, 5000, 100000}) {
      CAPTURE(n);
      const int heads = 3, stride = n + 5;
      const std::vector<float> scores = normals(static_cast<size_t>(heads * stride), 9, 4);
      std::vector<float> references;
      for (int h = 0; h < heads; ++h)
        for (const int chosen : {1, n / 40, n - 1}) {
          std::vector<float> sample;
          for (int i = 0; i < 16 * std::min(128, n / 16); ++i) {
            const int64_t tile = i / 16;
            const auto key = n / 16 <= 128 ? tile : tile * (n / 16) / 128;
            sample.push_back(scores[static_cast<size_t>(h * stride + key * 16 + i % 16)]);
          }
          std::ranges::sort(sample, std::greater<>());
          const float reference = sampled_score(scores.data() + h * stride, n, chosen);
          CHECK(reference ==
                sample[sample.size() * static_cast<size_t>(chosen) / static_cast<size_t>(n)]);
          if (chosen == 1) references.push_back(reference);
        }
      std::vector<float> ranks(static_cast<size_t>(n) + 1, -1e30f);
      group_ranks({.ranks = ranks.data(),
                   .scores = scores.data(),
                   .stride = stride,
                   .references = references.data(),
                   .n_heads = heads,
                   .n = n});
      for (int i = 0; i < n; ++i) {
        float most = -kInf;
        for (int h = 0; h < heads; ++h)
          most = std::max(most, scores[static_cast<size_t>(h * stride + i)] -
                                    references[static_cast<size_t>(h)]);
        CHECK(ranks[static_cast<size_t>(i)] == most);
      }
      CHECK(ranks.back() == -1e30f);
    }
  }

  TEST_CASE("masses of runs, with a bound and keys left out") {
    for (const int n : {1, 15, 255, 256, 257, 1000}) {
      std::vector<float> scores = normals(static_cast<size_t>(n), 6, 3);
      for (size_t i = 0; i < scores.size(); i += 7) scores[i] = -kInf;
      std::vector<float> want(static_cast<size_t>(n / kMeanKeys + 1), -1.0f);
      const auto run = [&](TailMassesFn* fn, std::vector<float>& to) {
        fn({.masses = to.data(), .scores = scores.data(), .n = n, .most = 2, .origin = 1.5f});
      };
      run(tail_masses_ref, want);
      for (const Isa isa : usable_isas()) {
        std::vector<float> got(want.size(), -1.0f);
        run(variant(isa, tail_masses_scalar, tail_masses_avx2, tail_masses_avx512), got);
        for (size_t i = 0; i < got.size(); ++i)
          REQUIRE(std::abs(got[i] - want[i]) <= 1e-5f * std::abs(want[i]));
      }
    }
  }

  TEST_CASE("masses of clusters, and the nearest clusters") {
    for (const int n : {1, 15, 64, 257}) {
      std::vector<float> scores = normals(static_cast<size_t>(n), 6, 3);
      for (size_t i = 0; i < scores.size(); i += 7) scores[i] = -kInf;
      std::vector<uint8_t> ids;
      for (int i = 0; i < n; ++i) ids.push_back(static_cast<uint8_t>(i * 37 % kValueClusters));
      const auto run = [&](ClusterMassesFn* fn) {
        std::vector<float> masses(kValueClusters, 0.25f);
        fn({.masses = masses.data(),
            .scores = scores.data(),
            .ids = ids.data(),
            .n = n,
            .most = 2,
            .origin = 1.5f});
        return masses;
      };
      const std::vector<float> want = run(cluster_masses_ref);
      for (const Isa isa : usable_isas()) {
        const auto got =
            run(variant(isa, cluster_masses_scalar, cluster_masses_avx2, cluster_masses_avx512));
        for (size_t i = 0; i < got.size(); ++i)
          REQUIRE(std::abs(got[i] - want[i]) <= 1e-5f * want[i]);
      }
    }
    for (const int d : {20, 64, 256}) {
      constexpr int kRows = 33;
      std::vector<float> numbers, centers, squares(kValueClusters);
      for (const float x : normals(static_cast<size_t>(kRows * d), 3, 40))
        numbers.push_back(std::clamp(std::nearbyint(x), -kMostValue, kMostValue));
      for (const float x : normals(static_cast<size_t>(kValueClusters * d), 4, 40))
        centers.push_back(std::clamp(std::nearbyint(x), -kMostValue, kMostValue));
      // The last two centers are the same: the first of them is chosen.
      for (size_t c = 0; c < static_cast<size_t>(d); ++c) {
        centers[c * kValueClusters + 63] = centers[c * kValueClusters + 62];
        numbers[c] = centers[c * kValueClusters + 63];
      }
      for (size_t i = 0; i < centers.size(); ++i)
        squares[i % kValueClusters] += centers[i] * centers[i];
      const auto run = [&](NearestClustersFn* fn) {
        std::vector<uint8_t> ids(kRows, 255);
        fn({.ids = ids.data(),
            .numbers = numbers.data(),
            .centers = centers.data(),
            .squares = squares.data(),
            .n = kRows,
            .d = d});
        return ids;
      };
      const std::vector<uint8_t> want = run(nearest_clusters_ref);
      CHECK(want[0] == 62);
      for (const Isa isa : usable_isas())
        CHECK(run(variant(isa, nearest_clusters_scalar, nearest_clusters_avx2,
                          nearest_clusters_avx512)) == want);
    }
    CHECK(cluster_unit(127.0 * 127 / 16) == 1);
    CHECK(cluster_unit(127.0 * 127 / 16 * 1.01) == 2);
    CHECK(cluster_unit(127.0 * 127 / 64) == 0.5f);
    CHECK(next_center(5, -7, 2) == -3);
    CHECK(next_center(5, 5, 2) == 3);
    CHECK(next_center(5, -8, 3) == -3);
    CHECK(next_center(5, 0, 0) == 5);
  }

  TEST_CASE("a list and means together are attention over both") {
    for (const int d : {24, 64, 80, 128})
      for (const float lse : {3.5f, -kInf, -60.0f}) {
        const std::vector<float> o = normals(static_cast<size_t>(d), 7);
        std::vector<float> masses = {0.5f, 2.0f, 0.0f, 7.0f, -0.25f};
        std::vector<bf16> means;
        for (const float x : normals(static_cast<size_t>(5 * d), 8)) means.push_back(to_bf16(x));
        const MeanRows rows[] = {{means.data(), 2}, {means.data() + 2 * d, 3}};
        const auto run = [&](AddMeansFn* fn, float scale) {
          std::vector<float> out = o, weights = masses;
          if (lse == -kInf) std::fill(out.begin(), out.end(), 0.0f);
          for (float& w : weights) w *= scale;
          out.push_back(lse);
          fn({.o = out.data(),
              .lse = out.data() + d,
              .masses = weights.data(),
              .rows = rows,
              .n_rows = 2,
              .d = d,
              .origin = 2.25f});
          return out;
        };
        const auto want = run(add_means_ref, 1), kept = run(add_means_ref, -100);
        for (const Isa isa : usable_isas()) {
          CAPTURE(isa_name(isa));
          const auto fn = variant(isa, add_means_scalar, add_means_avx2, add_means_avx512);
          const auto got = run(fn, 1);
          for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) <= 1e-5f);
          // More is taken off than there is: the list alone.
          CHECK(run(fn, -100) == kept);
        }
        CHECK(kept[static_cast<size_t>(d)] == lse);
        double mass = 0;
        for (const float m : masses) mass += m;
        const double total = std::exp(double{lse}) + mass * std::exp(2.25);
        CHECK(std::abs(want[static_cast<size_t>(d)] - std::log(total)) <= 1e-5);
      }
  }
}
