// The choice of keys by the scores that attention leaves, and what the next scores are relative to.
#include <algorithm>
#include <cmath>

#include "base/convert.h"
#include "base/rng.h"
#include "gpu/device_buffer.h"
#include "kernels/attention/mean_lse.h"
#include "ops/selection.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kSlots = 5, kLayers = 3, kHeads = 2, kTokens = 9024;  // room for tokens of a slot
constexpr int kNoId = -7;

/// Scores of one list: attention's, few different ones with zeros of both signs, all equal, and
/// infinite ones.
f16 score_of(PhiloxStream& stream, int kind) {
  const double x = stream.uniform();
  switch (kind) {
    case 0:
      return to_f16(static_cast<float>(4 * std::log(x + 1e-9)));
    case 1:
      return to_f16(static_cast<float>(std::floor(7 * x) - 3) * (x < 0.5 ? 1.0f : -0.0f));
    case 2:
      return to_f16(-2.5f);
    default:
      return to_f16(x < 0.3 ? -INFINITY : x > 0.9 ? INFINITY : static_cast<float>(x));
  }
}

std::vector<f16> some_scores(int kind) {
  PhiloxStream stream(9, static_cast<uint32_t>(kind));
  std::vector<f16> scores(size_t{kSlots} * kLayers * kHeads * kTokens);
  for (f16& score : scores) score = score_of(stream, kind);
  return scores;
}

/// The CPU's choice: the same bits in wider numbers have the same order.
std::vector<int32_t> choice_of(const f16* scores, int n, int m) {
  std::vector<float> wide, scratch(static_cast<size_t>(n) + 16);
  for (int t = 0; t < n; ++t) wide.push_back(to_float(scores[t]));
  std::vector<int32_t> ids(static_cast<size_t>(m) + 16);
  float threshold = 0;
  ops::select_top({.ids = ids.data(),
                   .threshold = &threshold,
                   .scores = wide.data(),
                   .n = n,
                   .m = m,
                   .first_id = 0,
                   .scratch = scratch.data()});
  ids.resize(static_cast<size_t>(m));
  return ids;
}

}  // namespace

TEST_SUITE("gpu/kernels/choose_scored") {
  TEST_CASE("lists, counts and bounds are the CPU's; sequences that do not choose keep theirs") {
    const std::vector<int32_t> slot = {3, 0, 4, 1, 0}, layers = {2, 0};
    // The last are padding; the second has no rows.
    const std::vector<int32_t> row_begin = {0, 5, 5, 9, 10, 10};
    const DeviceBuffer slots(slot), layer(layers), begins(row_begin);
    for (const int kind : {0, 1, 2, 3})
      for (const int n_chosen : {1, 63, 128, 1000, 4000})
        for (const std::vector<int32_t>& base :
             {std::vector<int32_t>{n_chosen + 200, 5000, 9001, n_chosen + 201, 9001},
              {8999, 1, n_chosen + 4300, 4999, 7}}) {
          CAPTURE(kind);
          CAPTURE(n_chosen);
          CAPTURE(base[0]);
          constexpr int kRecent = 200;
          const std::vector<f16> all = some_scores(kind);
          const int id_stride = n_chosen + 3, lists = 2 * kHeads;
          const DeviceBuffer scores(all), bases(base),
              ids(std::vector<int32_t>(static_cast<size_t>(kSlots * lists * id_stride), kNoId)),
              count(std::vector<int32_t>(size_t{kSlots} * kHeads, kNoId)),
              rest(std::vector<int32_t>(kSlots, kNoId));
          const ChooseScoredParams p{.ids = ids.as<int32_t>(),
                                     .count = count.as<int32_t>(),
                                     .rest = rest.as<int32_t>(),
                                     .row_stride = int64_t{lists} * id_stride,
                                     .id_stride = id_stride,
                                     .scores = scores.as<f16>(),
                                     .layers = layer.as<int32_t>(),
                                     .score_row_stride = int64_t{kLayers} * kHeads * kTokens,
                                     .score_stride = kTokens,
                                     .slot = slots.as<int32_t>(),
                                     .row_begin = begins.as<int32_t>(),
                                     .base = bases.as<int32_t>(),
                                     .n_seqs = 5,
                                     .n_layers = 2,
                                     .n_kv_heads = kHeads,
                                     .n_chosen = n_chosen,
                                     .recent = kRecent};
          cuda_table().choose_scored(p, queue().stream());
          cuda::launched("choose_scored", queue().stream());
          std::vector<int32_t> want_ids(ids.bytes() / 4, kNoId),
              want_count(count.bytes() / 4, kNoId), want_rest(rest.bytes() / 4, kNoId);
          for (size_t s = 0; s < slot.size(); ++s) {
            const int n = base[s] - kRecent;
            if (row_begin[s] == row_begin[s + 1] || n <= n_chosen) continue;
            want_rest[static_cast<size_t>(slot[s])] = n;
            for (int i = 0; i < lists; ++i) {
              const int at =
                  (slot[s] * kLayers + layers[static_cast<size_t>(i / kHeads)]) * kHeads +
                  i % kHeads;
              std::ranges::copy(choice_of(&all[static_cast<size_t>(at) * kTokens], n, n_chosen),
                                want_ids.begin() + (slot[s] * lists + i) * id_stride);
              want_count[static_cast<size_t>(slot[s] * kHeads + i % kHeads)] = n_chosen;
            }
          }
          CHECK(ids.vector<int32_t>() == want_ids);
          CHECK(count.vector<int32_t>() == want_count);
          CHECK(rest.vector<int32_t>() == want_rest);
        }
  }
}

TEST_SUITE("gpu/kernels/mean_lse") {
  TEST_CASE("means over rows have the CPU's bits; sequences without rows keep theirs") {
    constexpr int kLseHeads = 5, kRows = 40;
    const std::vector<int32_t> slot = {2, 0, 1}, row_begin = {0, 7, 7, 39};
    PhiloxStream stream(3, 1);
    std::vector<float> lse(size_t{kLayers} * kRows * kLseHeads),
        out(size_t{kSlots} * kLayers * kLseHeads, -1.0f);
    for (float& x : lse) x = static_cast<float>(20 * stream.uniform() - 5);
    const DeviceBuffer d_slot(slot), d_begin(row_begin), d_lse(lse), d_out(out);
    MeanLseParams p{.out = d_out.as<float>(),
                    .lse = d_lse.as<float>(),
                    .out_slot_stride = kLayers * kLseHeads,
                    .out_layer_stride = kLseHeads,
                    .layer_stride = kRows * kLseHeads,
                    .slot = d_slot.as<int32_t>(),
                    .row_begin = d_begin.as<int32_t>(),
                    .n_seqs = 3,
                    .n_layers = kLayers,
                    .n_heads = kLseHeads};
    cuda_table().mean_lse(p, queue().stream());
    cuda::launched("mean_lse", queue().stream());
    p.out = out.data();
    p.lse = lse.data();
    p.slot = slot.data();
    p.row_begin = row_begin.data();
    mean_lse_cpu(p, {0, 3});
    CHECK(d_out.vector<float>() == out);
    CHECK(std::ranges::count(out, -1.0f) == (kSlots - 2) * kLayers * kLseHeads);
  }
}
