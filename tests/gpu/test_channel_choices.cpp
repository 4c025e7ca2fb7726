// Choices of FFN channels on a GPU, against the CPU's.
#include <algorithm>
#include <cstring>

#include "gpu/device_buffer.h"
#include "kernels/channel_case.h"
#include "kernels/channels/channel_norms.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kLists = 3;

template <class T>
std::vector<T> untouched(size_t n) {
  std::vector<T> all(n);
  std::memset(all.data(), DeviceBuffer::kPoison, n * sizeof(T));
  return all;
}

struct Lists {
  std::vector<int32_t> ids, n;
  std::vector<int64_t> counted = std::vector<int64_t>(2 * kLists, 7);
  bool operator==(const Lists&) const = default;
};

/// ids and n are memory of the device that calls it.
ChooseChannelsParams params(int32_t* ids, int32_t* n, const float* scores, int channels, int keep,
                            int room, float threshold, int64_t* counted) {
  return {.ids = ids,
          .n = n,
          .scores = scores,
          .id_stride = room,
          .n_stride = 2,
          .score_stride = channels,
          .n_lists = kLists,
          .n_channels = channels,
          .keep = keep,
          .threshold = threshold,
          .counted = counted};
}

Lists on_cpu(bool by_threshold, const std::vector<float>& scores, int keep, int room,
             float threshold = 0) {
  Lists lists{untouched<int32_t>(static_cast<size_t>(kLists * room)),
              untouched<int32_t>(2 * kLists)};
  const ChooseChannelsParams p =
      params(lists.ids.data(), lists.n.data(), scores.data(),
             static_cast<int>(scores.size()) / kLists, keep, room, threshold, lists.counted.data());
  by_threshold ? channels_above_ref(p, {0, kLists}) : choose_channels_ref(p, {0, kLists});
  return lists;
}

Lists on_gpu(bool by_threshold, const std::vector<float>& scores, int keep, int room,
             float threshold = 0) {
  const DeviceBuffer from(scores), ids(static_cast<size_t>(kLists * room) * sizeof(int32_t)),
      n(2 * kLists * sizeof(int32_t)), counted(std::vector<int64_t>(2 * kLists, 7));
  const ChooseChannelsParams p = params(ids.as<int32_t>(), n.as<int32_t>(), from.as<float>(),
                                        static_cast<int>(scores.size()) / kLists, keep, room,
                                        threshold, counted.as<int64_t>());
  const char* name = by_threshold ? "channels_above" : "choose_channels";
  (by_threshold ? cuda_table().channels_above : cuda_table().choose_channels)(p, queue().stream());
  cuda::launched(name, queue().stream());
  return {ids.vector<int32_t>(), n.vector<int32_t>(), counted.vector<int64_t>()};
}

std::vector<float> three_lists(ScoreKind kind, int n, uint32_t seed = 0) {
  std::vector<float> all;
  for (uint32_t l = 0; l < kLists; ++l) {
    const std::vector<float> one = channel_scores(kind, n, seed + l);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

/// A step whose arrays and sums lie on the GPU.
struct StepOnDevice {
  DeviceBuffer x, slot, row_begin, sums, rows;
  explicit StepOnDevice(ChannelStep& s)
      : x(on_device(s.x)), slot(s.slot), row_begin(s.row_begin), sums(s.sums), rows(s.rows) {}
};

}  // namespace

TEST_SUITE("gpu/channels") {
  TEST_CASE("choices are those of the CPU: ties, one, all, up to 65536 channels") {
    for (const ScoreKind kind : kScoreKinds)
      for (const int n : {1, 31, 172, 1025, 8192, 14336, 28672, 65536})
        for (const int keep : {1, n / 3, n / 2, n - 1, n}) {
          if (keep < 1) continue;
          CAPTURE(static_cast<int>(kind));
          CAPTURE(n);
          CAPTURE(keep);
          const std::vector<float> scores = three_lists(kind, n);
          CHECK((on_gpu(false, scores, keep, keep) == on_cpu(false, scores, keep, keep)));
        }
  }

  TEST_CASE("channels above a threshold are those of the CPU") {
    for (const ScoreKind kind : kScoreKinds)
      for (const int n : {1, 172, 14336, 28672})
        for (const float threshold : {-INFINITY, -0.0f, 0.0f, 0.25f, 2.5f, 3.0f, INFINITY}) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(n);
          CAPTURE(threshold);
          const std::vector<float> scores = three_lists(kind, n);
          CHECK((on_gpu(true, scores, 0, n, threshold) == on_cpu(true, scores, 0, n, threshold)));
        }
  }

  TEST_CASE("a recorded choice follows the scores that lie there when it is launched") {
    constexpr int kChannels = 14336, kKeep = 5000;
    const DeviceBuffer scores(size_t{kLists} * kChannels * sizeof(float)),
        ids(size_t{kLists} * kKeep * sizeof(int32_t)), n(2 * kLists * sizeof(int32_t));
    const cuda::Graph graph(queue(), [&] {
      cuda_table().choose_channels(params(ids.as<int32_t>(), n.as<int32_t>(), scores.as<float>(),
                                          kChannels, kKeep, kKeep, 0, nullptr),
                                   queue().stream());
    });
    for (const uint32_t seed : {10u, 20u, 30u}) {
      const std::vector<float> now = three_lists(ScoreKind::random, kChannels, seed);
      queue().copy_in(scores.raw(), now.data(), now.size() * sizeof(float));
      graph.launch(queue());
      const Lists got{ids.vector<int32_t>(), n.vector<int32_t>()};
      CHECK((got == on_cpu(false, now, kKeep, kKeep)));
    }
  }

  TEST_CASE("squares of rows against sums in double, and in any number of calls the same bits") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const int channels : {1, 62, 173, 2048})
        for (const int n_rows : {3, 300})
          for (const bool scaled : {true, false})
            for (const float blend : {0.0f, 0.25f}) {
              CAPTURE(channels);
              CAPTURE(n_rows);
              CAPTURE(scaled);
              CAPTURE(blend);
              ChannelStep s(type, channels, n_rows, n_rows + 5, 3);
              const StepOnDevice d(s), parts(s);
              const auto all = static_cast<size_t>(s.n_rows());
              const DeviceBuffer scales(all * sizeof(float));
              const void* x = d.x.as<char>() + dtype_bytes(type);
              cuda_table().square_scales(s.scales(scales.as<float>(), x), queue().stream());
              cuda::launched("square_scales", queue().stream());
              std::vector<float> want_scales(all);
              square_scales_ref(s.scales(want_scales.data(), s.channel_0()),
                                {0, static_cast<int>(all)});
              const std::vector<float> got_scales = scales.vector<float>();
              for (size_t r = 0; r < all; ++r)
                REQUIRE(std::abs(got_scales[r] - want_scales[r]) <= 64 * 0x1p-23f * want_scales[r]);
              const auto run = [&](const StepOnDevice& to, int first, int last) {
                AddSquaresParams p =
                    s.squares(to.sums.as<float>(), to.rows.as<float>(), x,
                              scaled ? scales.as<float>() + first : nullptr, blend);
                p.slot = d.slot.as<int32_t>();
                p.row_begin = d.row_begin.as<int32_t>();
                p.first_row = first;
                p.last_row = last;
                cuda_table().add_squares(p, queue().stream());
                cuda::launched("add_squares", queue().stream());
              };
              const auto end = static_cast<int>(all);
              run(d, 0, end);
              run(parts, 0, 1);
              run(parts, 1, n_rows + 2);
              run(parts, n_rows + 2, end);
              const std::vector<float> sums = d.sums.vector<float>();
              CHECK(sums == parts.sums.vector<float>());
              CHECK(d.rows.vector<float>() == parts.rows.vector<float>());
              std::vector<float> want = s.sums, want_rows = s.rows;
              add_squares_ref(s.squares(want.data(), want_rows.data(), s.channel_0(),
                                        scaled ? got_scales.data() : nullptr, blend),
                              {0, channels});
              CHECK(d.rows.vector<float>() == want_rows);
              const float rounding = static_cast<float>(n_rows + 8) * 0x1p-23f;
              for (size_t i = 0; i < sums.size(); ++i)
                REQUIRE(std::abs(sums[i] - want[i]) <= rounding * (want[i] + s.sums[i]));
            }
  }

  TEST_CASE("rows of channels that allow wide accesses give the bits of others") {
    for (const DType type : {DType::f32, DType::bf16}) {
      // 62 + 2 columns: wide accesses where channels begin at column 0 and are 64.
      ChannelStep s(type, 62, 40, 25, 6);
      s.n_channels = 64;
      s.sums.assign(ChannelStep::kSlots * 64, 1);
      const StepOnDevice wide(s), narrow(s);
      const DeviceBuffer shifted(s.x.data(), s.x.size() * dtype_bytes(type), dtype_bytes(type));
      const auto run = [&](const StepOnDevice& to, const void* x) {
        AddSquaresParams p = s.squares(to.sums.as<float>(), to.rows.as<float>(), x, nullptr, 0);
        p.slot = to.slot.as<int32_t>();
        p.row_begin = to.row_begin.as<int32_t>();
        cuda_table().add_squares(p, queue().stream());
        cuda::launched("add_squares", queue().stream());
        return to.sums.vector<float>();
      };
      CHECK(run(wide, wide.x.raw()) == run(narrow, shifted.raw()));
    }
  }

  TEST_CASE("scores of channels are those of the CPU") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const int channels : {1, 173, 14336})
        for (const bool largest : {false, true})
          for (const bool weighed : {false, true})
            for (const int n_rows : {0, 4}) {
              CAPTURE(channels);
              CAPTURE(largest);
              CAPTURE(weighed);
              ChannelStep s(type, channels, n_rows, n_rows, 4);
              const StepOnDevice d(s);
              const size_t n = static_cast<size_t>(channels);
              const DeviceBuffer scores(n * sizeof(float));
              ScoreChannelsParams p{.scores = scores.as<float>(),
                                    .gate = d.x.raw(),
                                    .weights = {},
                                    .norms = weighed ? d.sums.as<float>() : nullptr,
                                    .slot = d.slot.as<int32_t>(),
                                    .row_begin = d.row_begin.as<int32_t>(),
                                    .n_seqs = 3,
                                    .n_channels = channels,
                                    .largest = largest,
                                    .type = type};
              if (weighed) p.weights = {d.sums.as<float>(), d.rows.as<float>(), channels, 1};
              require_same_in_graph(scores,
                                    [&] { cuda_table().score_channels(p, queue().stream()); });
              std::vector<float> want(n);
              p.scores = want.data();
              p.gate = s.x.data();
              if (weighed) p.weights = {s.sums.data(), s.rows.data(), channels, 1};
              p.norms = weighed ? s.sums.data() : nullptr;
              p.slot = s.slot.data();
              p.row_begin = s.row_begin.data();
              score_channels_ref(p, {0, channels});
              const std::vector<float> got = scores.vector<float>();
              for (size_t j = 0; j < n; ++j)
                REQUIRE(std::abs(got[j] - want[j]) <= 16 * 0x1p-23f * want[j]);
            }
  }

  TEST_CASE("norms of channels are those of the CPU, in rows and in columns") {
    constexpr int kChannels = 70, kWidth = 133;
    for (const DType type : {DType::f32, DType::bf16})
      for (const bool in_rows : {true, false}) {
        ActBuffer w(type, 2 * kChannels * kWidth);
        PhiloxStream stream(5);
        fill(w, stream, 2.0f);
        const DeviceBuffer weights = on_device(w), norms(kChannels * sizeof(float));
        ChannelNormsParams p{.norms = norms.as<float>(),
                             .weights = weights.raw(),
                             .part_stride = kChannels * kWidth,
                             .channel_stride = in_rows ? kWidth : 1,
                             .number_stride = in_rows ? 1 : kChannels,
                             .n_parts = in_rows ? 2 : 1,
                             .n_channels = kChannels,
                             .width = kWidth,
                             .type = type};
        cuda_table().channel_norms(p, queue().stream());
        cuda::launched("channel_norms", queue().stream());
        std::vector<float> want(kChannels);
        p.norms = want.data();
        p.weights = w.data();
        channel_norms_cpu(p, {0, kChannels});
        const std::vector<float> got = norms.vector<float>();
        for (size_t j = 0; j < kChannels; ++j)
          CHECK(got[j] == doctest::Approx(want[j]).epsilon(2e-7));
      }
  }
}
