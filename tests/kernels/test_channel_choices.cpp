#include <algorithm>
#include <numeric>

#include "kernels/channel_case.h"
#include "kernels/channels/channel_norms.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int32_t kUntouched = -7;
constexpr int kLists = 3;

struct Lists {
  std::vector<int32_t> ids, n;
  std::vector<int64_t> counted = std::vector<int64_t>(2 * kLists, 7);
};

/// Lists of scores side by side, ids in just the room that they need.
Lists choose(ChooseChannelsFn* fn, const std::vector<float>& scores, int keep, int room,
             float threshold = 0) {
  const auto n = static_cast<int>(scores.size()) / kLists;
  Lists lists{.ids = std::vector<int32_t>(static_cast<size_t>(kLists * room), kUntouched),
              .n = std::vector<int32_t>(2 * kLists, kUntouched)};
  fn({.ids = lists.ids.data(),
      .n = lists.n.data(),
      .scores = scores.data(),
      .id_stride = room,
      .n_stride = 2,
      .score_stride = n,
      .n_lists = kLists,
      .n_channels = n,
      .keep = keep,
      .threshold = threshold,
      .counted = lists.counted.data()},
     {0, kLists});
  return lists;
}

std::vector<float> three_lists(ScoreKind kind, int n) {
  std::vector<float> all;
  for (uint32_t l = 0; l < kLists; ++l) {
    const std::vector<float> one = channel_scores(kind, n, l);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace

TEST_SUITE("kernels/channel_choices") {
  TEST_CASE("choices are the reference's: ties, one, all, any number of channels") {
    for (const Isa isa : usable_isas())
      for (const ScoreKind kind : kScoreKinds)
        for (const int n : {1, 2, 15, 16, 17, 64, 172, 1001})
          for (const int keep : {1, n / 3, n / 2, n - 1, n}) {
            if (keep < 1) continue;
            CAPTURE(static_cast<int>(isa));
            CAPTURE(static_cast<int>(kind));
            CAPTURE(n);
            CAPTURE(keep);
            const std::vector<float> scores = three_lists(kind, n);
            const Lists got = choose(cpu_table(isa).choose_channels, scores, keep, keep);
            const Lists want = choose(choose_channels_ref, scores, keep, keep);
            REQUIRE(got.ids == want.ids);
            REQUIRE(got.n == want.n);
          }
  }

  TEST_CASE("of equal scores the last are kept") {
    for (const Isa isa : usable_isas()) {
      const Lists got = choose(cpu_table(isa).choose_channels, std::vector<float>(3 * 50, 1), 4, 4);
      CHECK(std::vector(got.ids.begin(), got.ids.begin() + 4) == std::vector{46, 47, 48, 49});
    }
  }

  TEST_CASE("channels above a threshold, of all, of some and of none") {
    for (const Isa isa : usable_isas())
      for (const ScoreKind kind : kScoreKinds)
        for (const int n : {1, 16, 33, 172, 1001})
          for (const float threshold : {-INFINITY, -0.0f, 0.0f, 0.25f, 2.5f, 3.0f, INFINITY}) {
            CAPTURE(static_cast<int>(isa));
            CAPTURE(static_cast<int>(kind));
            CAPTURE(n);
            CAPTURE(threshold);
            const std::vector<float> scores = three_lists(kind, n);
            Lists got = choose(cpu_table(isa).channels_above, scores, 0, n, threshold);
            const Lists want = choose(channels_above_ref, scores, 0, n, threshold);
            REQUIRE(got.n == want.n);
            REQUIRE(got.counted == want.counted);
            for (size_t l = 0; l < kLists; ++l) {
              REQUIRE(want.counted[2 * l] == 7 + 1);
              REQUIRE(want.counted[2 * l + 1] == 7 + want.n[2 * l]);
            }
            for (int l = 0; l < kLists; ++l)
              REQUIRE(std::equal(want.ids.begin() + l * n,
                                 want.ids.begin() + l * n + want.n[static_cast<size_t>(2 * l)],
                                 got.ids.begin() + l * n));
          }
  }

  TEST_CASE("squares of rows, scaled and not, blended and not, against sums in double") {
    for (const Isa isa : usable_isas())
      for (const DType type : {DType::f32, DType::bf16})
        for (const int channels : {1, 7, 64, 173})
          for (const bool scaled : {true, false})
            for (const float blend : {0.0f, 0.25f}) {
              CAPTURE(static_cast<int>(isa));
              CAPTURE(channels);
              CAPTURE(scaled);
              CAPTURE(blend);
              ChannelStep s(type, channels, 5, 9, 3);
              std::vector<float> scale(14), want_scale(14);
              cpu_table(isa).square_scales(s.scales(scale.data(), s.channel_0()), {0, 14});
              square_scales_ref(s.scales(want_scale.data(), s.channel_0()), {0, 14});
              CHECK(scale[2] == 0);
              for (size_t r = 0; r < 14; ++r)
                REQUIRE(std::abs(scale[r] - want_scale[r]) <=
                        static_cast<float>(channels) * 0x1p-23f * want_scale[r]);
              std::vector<float> sums = s.sums, want = s.sums, rows = s.rows, want_rows = s.rows;
              const float* by = scaled ? want_scale.data() : nullptr;
              const AddSquaresParams p =
                  s.squares(sums.data(), rows.data(), s.channel_0(), by, blend);
              cpu_table(isa).add_squares(p, {0, (channels + 1) / 2});
              cpu_table(isa).add_squares(p, {(channels + 1) / 2, channels});
              add_squares_ref(s.squares(want.data(), want_rows.data(), s.channel_0(), by, blend),
                              {0, channels});
              CHECK(rows == want_rows);
              for (size_t i = 0; i < sums.size(); ++i)
                REQUIRE(std::abs(sums[i] - want[i]) <= 32 * 0x1p-23f * (want[i] + s.sums[i]));
            }
  }

  TEST_CASE("sums of rows in any number of calls have the same bits") {
    for (const Isa isa : usable_isas())
      for (const float blend : {0.0f, 0.25f}) {
        ChannelStep s(DType::bf16, 173, 31, 12, 9);
        std::vector<float> scale(43), whole = s.sums, parts = s.sums, rows = s.rows,
                                      part_rows = s.rows;
        cpu_table(isa).square_scales(s.scales(scale.data(), s.channel_0()), {0, 43});
        cpu_table(isa).add_squares(
            s.squares(whole.data(), rows.data(), s.channel_0(), scale.data(), blend), {0, 173});
        AddSquaresParams p =
            s.squares(parts.data(), part_rows.data(), s.channel_0(), scale.data(), blend);
        for (const auto& [begin, end] : {std::pair{0, 1}, {1, 18}, {18, 33}, {33, 43}}) {
          p.first_row = begin;
          p.last_row = end;
          p.scale = scale.data() + begin;
          cpu_table(isa).add_squares(p, {0, 173});
        }
        CHECK(whole == parts);
        CHECK(rows == part_rows);
      }
  }

  TEST_CASE("scores of rows together, their largest, weighed, of steps without rows") {
    for (const Isa isa : usable_isas())
      for (const DType type : {DType::f32, DType::bf16})
        for (const int channels : {1, 16, 173})
          for (const bool largest : {false, true})
            for (const bool weighed : {false, true})
              for (const int rows : {0, 4}) {
                CAPTURE(static_cast<int>(isa));
                CAPTURE(channels);
                CAPTURE(largest);
                CAPTURE(weighed);
                ChannelStep s(type, channels, rows, rows, 4);
                std::vector<float> got(static_cast<size_t>(channels)), want = got;
                ScoreChannelsParams p{
                    .scores = got.data(),
                    .gate = s.x.data(),
                    .weights = weighed ? ChannelSums{s.sums.data(), s.rows.data(), channels, 1}
                                       : ChannelSums{},
                    .norms = weighed ? s.sums.data() : nullptr,
                    .slot = s.slot.data(),
                    .row_begin = s.row_begin.data(),
                    .n_seqs = 3,
                    .n_channels = channels,
                    .largest = largest,
                    .type = type};
                cpu_table(isa).score_channels(p, {0, (channels + 1) / 2});
                cpu_table(isa).score_channels(p, {(channels + 1) / 2, channels});
                p.scores = want.data();
                score_channels_ref(p, {0, channels});
                for (size_t j = 0; j < got.size(); ++j) {
                  REQUIRE(std::abs(got[j] - want[j]) <= 16 * 0x1p-23f * want[j]);
                  if (rows == 0) REQUIRE(got[j] == 0);
                }
              }
  }

  TEST_CASE("norms of channels that lie in rows and in columns") {
    constexpr int kChannels = 70, kWidth = 9;
    for (const DType type : {DType::f32, DType::bf16}) {
      ActBuffer w(type, 2 * kChannels * kWidth);
      PhiloxStream stream(5);
      fill(w, stream, 2.0f);
      std::vector<float> of_rows(kChannels), of_columns(kChannels);
      ChannelNormsParams p{.norms = of_rows.data(),
                           .weights = w.data(),
                           .part_stride = kChannels * kWidth,
                           .channel_stride = kWidth,
                           .number_stride = 1,
                           .n_parts = 2,
                           .n_channels = kChannels,
                           .width = kWidth,
                           .type = type};
      channel_norms_cpu(p, {0, kChannels});
      p.norms = of_columns.data();
      p.channel_stride = 1;
      p.number_stride = kChannels;
      p.n_parts = 1;
      channel_norms_cpu(p, {0, 3});
      channel_norms_cpu(p, {3, kChannels});
      for (size_t j = 0; j < kChannels; ++j) {
        double gate = 0, up = 0, column = 0;
        for (size_t i = 0; i < kWidth; ++i) {
          gate += std::pow(w.get(j * kWidth + i), 2.0);
          up += std::pow(w.get((kChannels + j) * kWidth + i), 2.0);
          column += std::pow(w.get(i * kChannels + j), 2.0);
        }
        CHECK(of_rows[j] == doctest::Approx(std::sqrt(gate) * std::sqrt(up)).epsilon(1e-7));
        CHECK(of_columns[j] == doctest::Approx(std::sqrt(column)).epsilon(1e-7));
      }
    }
  }
}
