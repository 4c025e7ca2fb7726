#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "error_text.h"
#include "io/file.h"
#include "model/adapter_lists.h"
#include "model/adapters/adapter_features.h"
#include "model/adapters/extract_slices.h"
#include "model/adapters/low_rank_factors.h"

using namespace tandem;
using namespace tandem::model;
using namespace tandem::test;

namespace {

/// The slices of a list alone.
List slices_of(const List& adapters) {
  List only;
  for (const WeightedAdapter& a : adapters)
    if (std::holds_alternative<Adapter>(a.adapter)) only.push_back(a);
  return only;
}

/// Exact factors of all matrices that a list changes, of rank `most` at most (0: any).
std::vector<Factors> factors_of(const List& adapters, int64_t most = 0) {
  const auto before = base(), sliced = fused(slices_of(adapters));
  std::vector<Factors> all;
  for (int layer = 0; layer < config().n_layers; ++layer)
    for (const Role w : kLayerRoles) {
      Factors f = exact_factors(*before, *sliced, adapters, {w, layer}, config());
      if (f.rank == 0) continue;
      all.push_back(shorten_factors(std::move(f), most == 0 ? 1 << 20 : most).factors);
    }
  return all;
}

LowRankAdapter written(const std::filesystem::path& folder, const std::vector<Factors>& factors) {
  int64_t rank = 0;
  for (const Factors& f : factors) rank = std::max(rank, f.rank);
  write_low_rank_adapter(folder, {.base = "base", .rank = rank, .alpha = static_cast<double>(rank)},
                         factor_views(factors));
  return LowRankAdapter::open(folder, config());
}

/// The largest difference, over all matrices.
double distance(const WeightSource& a, const WeightSource& b) {
  double most = 0;
  for (int layer = 0; layer < config().n_layers; ++layer)
    for (const Role w : kLayerRoles) {
      const auto x = floats_of(a, {w, layer}), y = floats_of(b, {w, layer});
      for (size_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(double{x[i]} - y[i]));
    }
  return most;
}

/// Singular values of M [rows, cols] by one-sided Jacobi rotations in f64, largest first.
std::vector<double> singular_values(std::vector<double> m, int64_t rows, int64_t cols) {
  const auto at = [&](int64_t r, int64_t c) -> double& {
    return m[static_cast<size_t>(r * cols + c)];
  };
  for (int sweep = 0; sweep < 60; ++sweep)
    for (int64_t p = 0; p < cols; ++p)
      for (int64_t q = p + 1; q < cols; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (int64_t r = 0; r < rows; ++r) {
          pp += at(r, p) * at(r, p);
          qq += at(r, q) * at(r, q);
          pq += at(r, p) * at(r, q);
        }
        if (std::abs(pq) < 1e-300) continue;
        const double zeta = (qq - pp) / (2 * pq);
        const double t = std::copysign(1 / (std::abs(zeta) + std::sqrt(1 + zeta * zeta)), zeta),
                     c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (int64_t r = 0; r < rows; ++r) {
          const double x = at(r, p), y = at(r, q);
          at(r, p) = c * x - s * y;
          at(r, q) = s * x + c * y;
        }
      }
  std::vector<double> values;
  for (int64_t c = 0; c < cols; ++c) {
    double squares = 0;
    for (int64_t r = 0; r < rows; ++r) squares += at(r, c) * at(r, c);
    values.push_back(std::sqrt(squares));
  }
  std::ranges::sort(values, std::greater<>());
  return values;
}

/// A model that has all weights of the base but one.
class WithOne final : public WeightSource {
 public:
  WithOne(Role weight, int64_t at, float value) : weight_(weight), at_(at), value_(value) {}
  WeightFormat native(MatrixId id) const override { return base_->native(id); }
  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    base_->rows(id, begin, end, to, out);
    const int64_t cols = shape_of(id.role, config())[1];
    if (id.role == weight_ && id.layer <= 0 && at_ >= begin * cols && at_ < end * cols)
      static_cast<float*>(out)[at_ - begin * cols] = value_;
  }
  std::vector<float> vector(MatrixId id) const override {
    std::vector<float> v = base_->vector(id);
    if (id.role == weight_ && id.layer <= 0) v[static_cast<size_t>(at_)] = value_;
    return v;
  }
  void embed(std::span<const int32_t>, float*) const override {}

 private:
  std::unique_ptr<WeightSource> base_ = tandem::test::base();
  Role weight_;
  int64_t at_;
  float value_;
};

/// The base, with every number of one kind of matrix changed.
class WithAll final : public WeightSource {
 public:
  explicit WithAll(Role weight) : weight_(weight) {}
  WeightFormat native(MatrixId id) const override { return base_->native(id); }
  void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const override {
    base_->rows(id, begin, end, to, out);
    const int64_t n = (end - begin) * (id.role == weight_ ? shape_of(id.role, config())[1] : 0);
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(out)[i] += 1;
  }
  std::vector<float> vector(MatrixId id) const override { return base_->vector(id); }
  void embed(std::span<const int32_t>, float*) const override {}

 private:
  std::unique_ptr<WeightSource> base_ = tandem::test::base();
  Role weight_;
};

}  // namespace

TEST_SUITE("model/adapter_forms") {
  TEST_CASE("one adapter of slices out of several: the bits of all merged") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10), b = slices(folder / "b", kB, 20),
               c = slices(folder / "c", kC, 30);
    const List all = list(WeightedAdapter{a}, WeightedAdapter{b, 0.5f}, WeightedAdapter{c, -2});
    const auto merged = fused(all);
    const auto parts = fused_slices(*merged, all, config());
    write_adapter(folder / "one", {.base = kBase, .selection = "{}"}, slice_views(parts));
    const auto one = Adapter::open(folder / "one", config(), kBase);
    CHECK(distance(*fused(list(WeightedAdapter{one})), *merged) == 0);
    CHECK(one.index({Role::up, 0}).size() == 6);
    CHECK(one.index({Role::down, 0}).size() == 5);
    // Where one at weight 1 has it, its own values.
    const auto own = a.values({Role::o, 0}), found = one.values({Role::o, 0});
    CHECK(found == own);
    CHECK(fused_slices(*base(), list(WeightedAdapter{a, 0}), config()).empty());
  }

  TEST_CASE("exact factors: they merge to what the adapters do, and are read back") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10), c = slices(folder / "c", kC, 30);
    const auto l = factors(folder / "l", false, 40), k = factors(folder / "k", false, 60);
    for (const List& all :
         {list(WeightedAdapter{a}), list(WeightedAdapter{l, 0.5f}, WeightedAdapter{k, -2}),
          list(WeightedAdapter{a, 0.7f}, WeightedAdapter{l, 2}, WeightedAdapter{c})}) {
      const auto read = written(folder / "out", factors_of(all));
      const auto again = fused(list(WeightedAdapter{read})), merged = fused(all);
      CHECK(distance(*again, *merged) < 3e-7);
      for (int layer = 0; layer < config().n_layers; ++layer)
        for (const Role w : kLayerRoles) {
          const bool changes = std::ranges::any_of(all, [&](const WeightedAdapter& x) {
            return holds(x.adapter, {w, layer});
          });
          CHECK(read.holds({w, layer}) == changes);
          if (changes) CHECK(read.gamma({w, layer}) == 1);
        }
    }
    const auto json = nlohmann::json::parse(io::read_file(folder / "out" / "adapter_config.json"));
    // Four features of a and c, and rank 2 of l: the most of a matrix; others say theirs.
    CHECK(json["r"] == 6);
    CHECK(json["rank_pattern"]["model.layers.1.mlp.up_proj"] == 2);
    CHECK(json["alpha_pattern"]["model.layers.1.mlp.up_proj"] == 2.0);
    CHECK(json["target_modules"].size() == 6);
  }

  TEST_CASE("the best factors of a rank lose what the singular values beyond it are") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10);
    const auto l = factors(folder / "l", false, 40);
    const List all = list(WeightedAdapter{a, 0.7f}, WeightedAdapter{l, 2});
    const auto before = base(), sliced = fused(slices_of(all)), merged = fused(all);
    for (const Role w : {Role::up, Role::down, Role::q, Role::o}) {
      const int layer = w == Role::q ? 1 : 0;
      const io::Shape shape = shape_of(w, config());
      const auto old = floats_of(*before, {w, layer}), now = floats_of(*merged, {w, layer});
      const bool tall = shape[0] >= shape[1];
      std::vector<double> change(old.size());
      for (size_t i = 0; i < old.size(); ++i) {
        const auto n = static_cast<int64_t>(i);
        const int64_t r = n / shape[1], c = n % shape[1];
        change[static_cast<size_t>(tall ? n : c * shape[0] + r)] = double{now[i]} - old[i];
      }
      const auto values =
          singular_values(change, std::max(shape[0], shape[1]), std::min(shape[0], shape[1]));
      for (const int64_t rank : {1, 3}) {
        CAPTURE(canonical_name({w, layer}));
        CAPTURE(rank);
        const auto s =
            shorten_factors(exact_factors(*before, *sliced, all, {w, layer}, config()), rank);
        double lost = 0, whole = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          whole += values[i] * values[i];
          if (static_cast<int64_t>(i) >= rank) lost += values[i] * values[i];
        }
        CHECK(s.factors.rank == rank);
        CHECK(std::sqrt(s.change) == doctest::Approx(std::sqrt(whole)).epsilon(1e-5));
        CHECK(std::sqrt(s.lost) == doctest::Approx(std::sqrt(lost)).epsilon(1e-5));
        // And so do the factors.
        double rest = 0;
        for (int64_t r = 0; r < shape[0]; ++r)
          for (int64_t c = 0; c < shape[1]; ++c) {
            double x = 0;
            for (int64_t i = 0; i < rank; ++i)
              x += double{s.factors.b[static_cast<size_t>(r * rank + i)]} *
                   s.factors.a[static_cast<size_t>(i * shape[1] + c)];
            const auto i = static_cast<size_t>(r * shape[1] + c);
            const double difference = double{now[i]} - old[i] - x;
            rest += difference * difference;
          }
        CHECK(std::sqrt(rest) == doctest::Approx(std::sqrt(lost)).epsilon(1e-5));
      }
      const auto whole =
          shorten_factors(exact_factors(*before, *sliced, all, {w, layer}, config()), 400);
      CHECK(whole.lost == 0);
    }
  }

  TEST_CASE("a tuned model gives back the adapter that made it, bit for bit") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10);
    const auto tuned = fused(list(WeightedAdapter{a})), before = base();
    const ModelConfig c = config();
    int64_t n = 0;
    const auto found = extract_slices({c, *before, "base"}, {c, *tuned, "tuned"},
                                      [&](int64_t k) { return (n += k) > 0; });
    CHECK(n == n_params(c));
    REQUIRE(found.size() == kA.size());
    for (const OwnedSlice& s : found) {
      const auto index = a.index(s.id);
      CHECK(std::ranges::equal(s.index, index));
      CHECK(s.values == a.values(s.id));
    }
    const auto refused = [&](const WeightSource& source) {
      return input_error_text([&] { extract_slices({c, *before, "base"}, {c, source, "tuned"}); });
    };
    CHECK(refused(*before).find("has the same weights as base") != std::string::npos);
    CHECK(refused(WithOne(Role::embedding, 17, 3)).find("model.embed_tokens.weight differs") !=
          std::string::npos);
    CHECK(refused(WithOne(Role::ffn_pre, 3, 3)).find("post_attention_layernorm") !=
          std::string::npos);
    CHECK(refused(WithOne(Role::up, 3, INFINITY)).find("is inf at [0, 3]") != std::string::npos);
    // One element makes its whole head.
    const auto one = extract_slices({c, *before, "base"}, {c, WithOne(Role::q, 4 * 12, 3), "t"});
    REQUIRE(one.size() == 1);
    CHECK(one[0].index == std::vector<int32_t>{4, 5, 6, 7});
    // The only KV head.
    const auto single = extract_slices({c, *before, "b"}, {c, WithOne(Role::k, 12, 3), "t"});
    CHECK(single[0].index.size() == 4);
    // All heads of a layer, as a run may train them; but not most weights of all layers.
    const auto heads = extract_slices({c, *before, "b"}, {c, WithAll(Role::o), "t"});
    REQUIRE(std::ssize(heads) == c.n_layers);
    CHECK(std::ssize(heads[0].index) == c.q_dim());
    const auto other = synthetic_source(c, kSeed + 1);
    CHECK(refused(*other).find("differ") != std::string::npos);
    const auto l = factors(folder / "l", false, 40);
    CHECK(refused(*fused(list(WeightedAdapter{l})))
              .find("tuned: all 300 rows of model.layers.0.mlp.up_proj.weight differ from base") !=
          std::string::npos);
    ModelConfig wide = c;
    wide.ffn_dim = 304;
    CHECK(input_error_text([&] {
            extract_slices({c, *before, "base"}, {wide, *synthetic_source(wide, 1), "tuned"});
          }).find("tuned: has intermediate_size 304, base has 300") != std::string::npos);
  }

  TEST_CASE("units that two adapters both change") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10), b = slices(folder / "b", kB, 20),
               c = slices(folder / "c", kC, 30);
    const auto l = factors(folder / "l", false, 40);
    CHECK(find_overlaps(list(WeightedAdapter{a}, WeightedAdapter{b}), config()).empty());
    CHECK(find_overlaps(list(WeightedAdapter{a}, WeightedAdapter{c, 0}), config()).empty());
    const auto found = find_overlaps(
        list(WeightedAdapter{b}, WeightedAdapter{a}, WeightedAdapter{c}, WeightedAdapter{l}),
        config());
    const auto units = [&](size_t first, size_t second, Role w) {
      int n = 0;
      for (const Overlap& o : found)
        if (o.first == first && o.second == second && o.id.role == w) n += o.units;
      return n;
    };
    CHECK(units(0, 1, Role::up) == 0);
    CHECK(units(1, 2, Role::up) == 2);
    CHECK(units(1, 2, Role::down) == 1);
    CHECK(units(1, 3, Role::up) == 3);
    CHECK(units(1, 3, Role::q) == 0);
  }
}
