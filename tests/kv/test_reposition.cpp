#include <doctest/doctest.h>

#include <cmath>

#include "engine_runs.h"
#include "ops/elementwise.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 16, kSinks = 5, kRecent = 40;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kDim;
const ops::RopeSpec kRope{};
using Vec = std::vector<double>;

/// One layer's cache over tokens whose q, k and v before rotation are random.
struct Layer {
  explicit Layer(bool reposition, int n)
      : tokens(n),
        arena(plan(spec(reposition))),
        rope(kRope, 512, kDim, arena),
        cache(spec(reposition), arena, {&rope, 1}) {
    PhiloxStream draw(3);
    for (int i = 0; i < n * kQkv; ++i) qkv.push_back(static_cast<float>(draw.uniform() * 4 - 2));
  }

  static kv::Cache::Spec spec(bool reposition) {
    return {.geometry = {.n_layers = 1,
                         .n_heads = kHeads,
                         .n_kv_heads = kKvHeads,
                         .head_dim = kDim,
                         .dtype = DType::f32},
            .max_seqs = 1,
            .max_tokens = 512,
            .total_tokens = 512,
            .max_rows = 512,
            .policies = {streaming(kSinks, kRecent, reposition)}};
  }
  static MemoryPlan plan(const kv::Cache::Spec& s) {
    MemoryPlan p;
    ops::RopeTable::plan(512, kDim, p);
    kv::Cache::plan(s, p);
    return p;
  }

  /// Attention of the next `n` tokens, [n, heads, dim].
  Row step(kv::Phase phase, int slot, int n) {
    const int base = cache.length(slot);
    const kv::SeqRows rows[] = {{slot, n, true}};
    const kv::Step s = cache.begin({.phase = phase, .rows = rows});
    Row q(static_cast<size_t>(n * kHeads * kDim)), out(q.size());
    const Tensor q_rows(q.data(), DType::f32, {n, kHeads, kDim});
    ops::rope_kv({.q = q_rows,
                  .k_pool = cache.k(0),
                  .v_pool = cache.v(0),
                  .qkv = Tensor(qkv.data() + base * kQkv, DType::f32, {n, kQkv}),
                  .rope = rope,
                  .step = s.arrays});
    cache.attend(0, s, Tensor(out.data(), DType::f32, {n, kHeads, kDim}), q_rows);
    cache.commit(s);
    return out;
  }

  /// A head of a token's q, k or v: `part` is its index among all heads of the row.
  Vec head(int token, int part) const {
    const float* p = qkv.data() + token * kQkv + part * kDim;
    return {p, p + kDim};
  }

  int tokens;
  Row qkv;
  Arena arena;
  ops::RopeTable rope;
  kv::Cache cache;
};

Vec rotated(Vec x, int position) {
  for (int i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(kRope.theta, -2.0 * i / kDim);
    const double a = x[static_cast<size_t>(i)], b = x[static_cast<size_t>(i + kDim / 2)];
    x[static_cast<size_t>(i)] = a * std::cos(angle) - b * std::sin(angle);
    x[static_cast<size_t>(i + kDim / 2)] = b * std::cos(angle) + a * std::sin(angle);
  }
  return x;
}

/// The paper's cache: the kept keys are numbered from 0 and rotated anew for each query, which
/// stands at the last number.
Vec naive(const Layer& layer, int token, int head) {
  std::vector<int> kept;
  for (int t = 0; t <= token; ++t)
    if (t < kSinks || token - t < kRecent) kept.push_back(t);
  const int kv_head = head / (kHeads / kKvHeads);
  const Vec q = rotated(layer.head(token, head), static_cast<int>(kept.size()) - 1);
  Vec out(kDim);
  double sum = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const Vec k = rotated(layer.head(kept[i], kHeads + kv_head), static_cast<int>(i));
    const Vec v = layer.head(kept[i], kHeads + kKvHeads + kv_head);
    double dot = 0;
    for (size_t d = 0; d < kDim; ++d) dot += q[d] * k[d];
    const double weight = std::exp(dot / std::sqrt(double{kDim}));
    sum += weight;
    for (size_t d = 0; d < kDim; ++d) out[d] += weight * v[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace

TEST_SUITE("kv/reposition") {
  TEST_CASE("repositioned sinks equal a cache whose keys are rotated anew at every step") {
    for (const int prompt : {1, 30, 44, 45, 46, 120}) {
      CAPTURE(prompt);
      Layer layer(true, 300);
      const int slot = layer.cache.create();
      layer.step(kv::Phase::prefill, slot, prompt);
      double worst = 0;
      for (const int n : {1, 1, 7, 60, 1, 100}) {  // below, at and beyond sinks + recent
        const int first = layer.cache.length(slot);
        const Row out = layer.step(kv::Phase::extend, slot, n);
        for (int i = 0; i < n; ++i)
          for (int head = 0; head < kHeads; ++head) {
            const Vec want = naive(layer, first + i, head);
            for (size_t d = 0; d < kDim; ++d)
              worst = test::worse(
                  worst,
                  std::abs(want[d] -
                           double{out[static_cast<size_t>((i * kHeads + head) * kDim) + d]}));
          }
      }
      // Scores reach 15 and carry a few ulp of rotation by angles up to 300 rad in f32: 3e-5 each
      // at worst, on averages of values up to 2.
      CHECK(worst <= 1e-4);
    }
  }

  TEST_CASE("until sinks + recent tokens exist, repositioning changes nothing") {
    Layer with(true, 100), without(false, 100);
    const int a = with.cache.create(), b = without.cache.create();
    CHECK(max_difference(with.step(kv::Phase::prefill, a, 20),
                         without.step(kv::Phase::prefill, b, 20)) == 0);
    for (const int n : {10, 14, 1})
      CHECK(max_difference(with.step(kv::Phase::extend, a, n),
                           without.step(kv::Phase::extend, b, n)) <= 2e-6);
    REQUIRE(with.cache.length(a) == kSinks + kRecent);
    CHECK(max_difference(with.step(kv::Phase::extend, a, 1),
                         without.step(kv::Phase::extend, b, 1)) > 1e-4);
  }
}
