// Scores of all keys, and keys drawn by them.
#include <algorithm>
#include <cmath>

#include "base/page.h"
#include "gpu/device_buffer.h"
#include "kernels/gather/draw_keys.h"
#include "kernels/gather/score_keys.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kRows = 7, kPages = 12, kSlots = 3;
constexpr int kTokens = kPages * kPageTokens;

/// Rows of two sequences; the last two belong to none.
const std::vector<int32_t> kSlot = {2, 0}, kRowBegin = {0, 3, 5},
                           kPos = {500, 501, 502, 0, 1, 99, 99};

/// The CPU's draws (policies/oracle.cpp), from f32 scores.
struct Drawn {
  std::vector<int32_t> ids;
  std::vector<float> bias;
};
Drawn draws_of(const float* scores, int n, int m, uint64_t seed, uint32_t stream) {
  const float top = *std::max_element(scores, scores + n);
  std::vector<double> cumulative;
  double sum = 0;
  for (int t = 0; t < n; ++t) cumulative.push_back(sum += std::exp(double{scores[t]} - top));
  PhiloxStream random(seed, stream);
  std::vector<int> times(static_cast<size_t>(n));
  for (int i = 0; i < m; ++i) {
    const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), random.uniform() * sum);
    ++times[static_cast<size_t>(std::min<std::ptrdiff_t>(n - 1, at - cumulative.begin()))];
  }
  Drawn d;
  for (int t = 0; t < n; ++t)
    if (const int k = times[static_cast<size_t>(t)]; k > 0) {
      d.ids.push_back(t);
      d.bias.push_back(
          static_cast<float>(top + std::log(sum) + std::log(double(k) / m) - double{scores[t]}));
    }
  return d;
}

}  // namespace

TEST_SUITE("gpu/kernels/draw_keys") {
  TEST_CASE("scores are products of queries and keys; draws are the CPU's from the same scores") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {32, 96, 128, 256})
        for (const double ratio : {0.001, 0.1, 1.0}) {
          CAPTURE(dtype_name(dtype));
          CAPTURE(d);
          CAPTURE(ratio);
          PhiloxStream stream(3, static_cast<uint32_t>(d));
          ActBuffer q(dtype, static_cast<size_t>(kRows * kHeads * d)),
              k(dtype, static_cast<size_t>(kSlots * kTokens * kKvHeads * d));
          fill(q, stream, 1.0f);
          fill(k, stream, 1.0f);
          std::vector<int32_t> pages;
          for (int i = 0; i < kSlots * kPages; ++i)
            pages.push_back((i * 5 + 2) % (kSlots * kPages));
          constexpr int kLists = kRows * kHeads;
          const DeviceBuffer slot(kSlot), begin(kRowBegin), pos(kPos),
              dq = on_device(q), dk = on_device(k), dpages(pages);
          const DeviceBuffer scores(size_t{kLists} * kTokens * sizeof(float)),
              n(kLists * sizeof(int32_t)), m(kLists * sizeof(int32_t)),
              count(kLists * sizeof(int32_t)), ids(size_t{kLists} * kTokens * sizeof(int32_t)),
              bias(size_t{kLists} * kTokens * sizeof(float)),
              drawn(size_t{kLists} * kTokens * sizeof(int32_t)),
              cumulative(size_t{kLists} * kTokens * sizeof(double));
          const ChoosingRows choosing{.slot = slot.as<int32_t>(),
                                      .row_begin = begin.as<int32_t>(),
                                      .pos = pos.as<int32_t>(),
                                      .n_seqs = 2,
                                      .rows = {0, kRows}};
          const float scale = 0.7f;
          cuda_table().score_keys({.scores = scores.as<float>(),
                                   .n = n.as<int32_t>(),
                                   .m = m.as<int32_t>(),
                                   .q = dq.raw(),
                                   .k_pool = dk.raw(),
                                   .page_table = dpages.as<int32_t>(),
                                   .score_stride = kTokens,
                                   .choosing = choosing,
                                   .max_pages = kPages,
                                   .n_heads = kHeads,
                                   .n_kv_heads = kKvHeads,
                                   .d = d,
                                   .dtype = dtype,
                                   .max_tokens = kTokens,
                                   .scale = scale,
                                   .ratio = ratio},
                                  queue().stream());
          cuda::launched("score_keys", queue().stream());
          constexpr uint64_t kSeed = 77;
          constexpr int kLayer = 3;
          cuda_table().draw_keys({.ids = ids.as<int32_t>(),
                                  .bias = bias.as<float>(),
                                  .count = count.as<int32_t>(),
                                  .scores = scores.as<float>(),
                                  .n = n.as<int32_t>(),
                                  .m = m.as<int32_t>(),
                                  .drawn = drawn.as<int32_t>(),
                                  .cumulative = cumulative.as<double>(),
                                  .id_stride = kTokens,
                                  .score_stride = kTokens,
                                  .choosing = choosing,
                                  .layer = kLayer,
                                  .n_heads = kHeads,
                                  .seed = kSeed},
                                 queue().stream());
          cuda::launched("draw_keys", queue().stream());
          const std::vector<float> got = scores.vector<float>(), got_bias = bias.vector<float>();
          const std::vector<int32_t> counts = count.vector<int32_t>(), all = ids.vector<int32_t>(),
                                     ns = n.vector<int32_t>(), ms = m.vector<int32_t>();
          double worst = 0, worst_bias = 0;
          for (int list = 0; list < kLists; ++list) {
            const int row = list / kHeads, head = list % kHeads;
            const auto i = static_cast<size_t>(list);
            const auto at = static_cast<size_t>(list * kTokens);
            if (row >= kRowBegin.back()) {
              CHECK(ns[i] == 0);
              CHECK(ms[i] == 0);
              CHECK(counts[i] == 0);
              continue;
            }
            const auto r = static_cast<size_t>(row);
            const int tokens = kPos[r] + 1, sequence = kSlot[row < kRowBegin[1] ? 0 : 1];
            REQUIRE(ns[i] == tokens);
            REQUIRE(ms[i] == std::max(1, static_cast<int>(ratio * tokens)));
            for (int t = 0; t < tokens; ++t) {
              const int page = pages[static_cast<size_t>(sequence * kPages + t / kPageTokens)];
              const int key =
                  (page * kKvHeads + head / (kHeads / kKvHeads)) * kPageTokens + t % kPageTokens;
              double dot = 0;
              for (int c = 0; c < d; ++c)
                dot += double{q.get(static_cast<size_t>(list * d + c))} *
                       k.get(static_cast<size_t>(key * d + c));
              worst = worse(worst, std::abs(scale * dot - got[at + static_cast<size_t>(t)]));
            }
            const Drawn want =
                draws_of(&got[at], tokens, ms[i], kSeed ^ (static_cast<uint64_t>(kPos[r]) << 20),
                         static_cast<uint32_t>(kLayer * kHeads + head));
            REQUIRE(counts[i] == static_cast<int32_t>(want.ids.size()));
            for (size_t j = 0; j < want.ids.size(); ++j) {
              CHECK(all[at + j] == want.ids[j]);
              worst_bias = worse(worst_bias, std::abs(double{want.bias[j]} - got_bias[at + j]));
            }
          }
          CHECK(worst <= 2e-5);
          CHECK(worst_bias <= 1e-5);
        }
  }
}
