// The best of the scores of many lists, against the reference.
#include <algorithm>
#include <cmath>

#include "gpu/device_buffer.h"
#include "kernels/selection/select_top.h"
#include "kernels/selection/select_top_cuda.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kUntouched = -7;

enum class Kind : uint8_t { random, ties, equal, masked, none, zeros, wide };

std::vector<float> scores_of(Kind kind, int n, uint32_t seed) {
  PhiloxStream stream(seed, static_cast<uint32_t>(kind));
  std::vector<float> x;
  for (int i = 0; i < n; ++i) {
    const float uniform = random_float(stream, 1.0f);
    switch (kind) {
      case Kind::random:
        x.push_back(uniform * uniform * uniform);
        break;
      case Kind::ties:
        x.push_back(std::floor(6 * uniform));
        break;
      case Kind::equal:
        x.push_back(-2.5f);
        break;
      case Kind::masked:
        x.push_back(i % 3 == 1 ? uniform : -kInf);
        break;
      case Kind::none:
        x.push_back(-kInf);
        break;
      case Kind::zeros:
        x.push_back(uniform > 0.3f ? 0.0f : uniform < -0.3f ? -0.0f : uniform);
        break;
      case Kind::wide:
        x.push_back(std::ldexp(uniform, i % 250 - 125));
        break;
    }
  }
  return x;
}

std::vector<int32_t> choice_of(const std::vector<float>& scores, int m, int run) {
  std::vector<int32_t> ids(static_cast<size_t>(m) + 16);
  float threshold = 0;
  const int n = select_top_ref({.ids = ids.data(),
                                .threshold = &threshold,
                                .scores = scores.data(),
                                .n = static_cast<int>(scores.size()),
                                .m = m,
                                .first_id = 0,
                                .scratch = nullptr});
  std::vector<int32_t> all;
  for (int i = 0; i < n; ++i)
    for (int r = 0; r < run; ++r) all.push_back(ids[static_cast<size_t>(i)] * run + r);
  return all;
}

}  // namespace

TEST_SUITE("gpu/kernels/select_top") {
  TEST_CASE("choices are the reference's: ties, infinite scores, none and all of them") {
    const std::vector<int32_t> n = {0, 1, 100, 4096, 5000, 9001, 9001};
    const auto stride = static_cast<size_t>(n.back() + 3);
    for (const Kind kind :
         {Kind::random, Kind::ties, Kind::equal, Kind::masked, Kind::none, Kind::zeros, Kind::wide})
      for (const int run : {1, 16})
        for (const std::vector<int32_t>& m : {std::vector<int32_t>{1, 1, 1, 1, 1, 1, 0},
                                              {0, 0, 0, 0, 0, 0, 0},
                                              {5, 5, 100, 4096, 5000, 9001, 20000},
                                              {3, 2, 99, 1000, 4999, 2048, 31}}) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(run);
          CAPTURE(m[3]);
          std::vector<std::vector<float>> lists;
          std::vector<float> all(n.size() * stride, NAN);
          for (size_t i = 0; i < n.size(); ++i) {
            lists.push_back(scores_of(kind, n[i], static_cast<uint32_t>(i)));
            std::ranges::copy(lists[i], all.begin() + static_cast<std::ptrdiff_t>(i * stride));
          }
          const size_t id_stride = stride * static_cast<size_t>(run);
          const DeviceBuffer scores(all), ns(n), ms(m), count(n.size() * sizeof(int32_t)),
              ids(std::vector<int32_t>(n.size() * id_stride, kUntouched));
          const SelectTopCudaParams p{.ids = ids.as<int32_t>(),
                                      .count = count.as<int32_t>(),
                                      .scores = scores.as<float>(),
                                      .n = ns.as<int32_t>(),
                                      .m = ms.as<int32_t>(),
                                      .id_stride = static_cast<int64_t>(id_stride),
                                      .score_stride = static_cast<int64_t>(stride),
                                      .n_lists = static_cast<int>(n.size()),
                                      .run = run};
          cuda_table().select_top(p, queue().stream());
          cuda::launched("select_top", queue().stream());
          const std::vector<int32_t> got = ids.vector<int32_t>(), counts = count.vector<int32_t>();
          for (size_t i = 0; i < n.size(); ++i) {
            CAPTURE(n[i]);
            std::vector<int32_t> want = choice_of(lists[i], m[i], run);
            CHECK(counts[i] == static_cast<int32_t>(want.size()));
            want.resize(id_stride, kUntouched);
            const auto begin = got.begin() + static_cast<std::ptrdiff_t>(i * id_stride);
            CHECK(std::equal(want.begin(), want.end(), begin));
          }
        }
  }
}
