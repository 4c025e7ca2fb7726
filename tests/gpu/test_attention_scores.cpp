// Scores of keys that attention of few rows leaves.
#include <algorithm>

#include "gpu/attention_on_device.h"
#include "kernels/scored_case.h"
#include "tensor/gpu_isa.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// A scored case in device memory, whose scores lie there as they do on the host.
class ScoredOnDevice {
 public:
  explicit ScoredOnDevice(ScoredCase& c, int max_rows = 0, int max_tokens = 0)
      : call(c.attention(), max_rows, max_tokens),
        slots_(c.slot()),
        pages_(c.pages()),
        lse_(c.subtracted()),
        scores_(std::vector<f16>(c.n_scores(), ScoredCase::kUnwritten)) {
    AttentionParams& p = call.params();
    p.slot = slots_.as<int32_t>();
    p.page_table = pages_.as<int32_t>();
    p.scores = c.params().scores;
    p.scores.at = scores_.as<f16>();
    p.scores.lse = lse_.as<float>();
  }
  AttentionBounds bounds() const {
    AttentionBounds b = call.bounds();
    b.scores = true;
    return b;
  }
  std::vector<f16> run(cuda::GpuIsa isa) const {
    call.run(FewRowsMemory(bounds()), false, isa);
    return scores_.vector<f16>();
  }

  AttentionOnDevice call;

 private:
  DeviceBuffer slots_, pages_, lse_, scores_;
};

/// The bodies of attention of few rows that this GPU runs.
std::vector<cuda::GpuIsa> bodies() {
  std::vector<cuda::GpuIsa> all = {cuda::GpuIsa::portable};
  if (cuda::gpu().isa == cuda::GpuIsa::hopper) all.push_back(cuda::GpuIsa::hopper);
  return all;
}

void check_scores(const AttentionSpec& spec, int max_rows = 0, int max_tokens = 0) {
  ScoredCase c(spec);
  const std::vector<f16> want = c.run_ref();
  for (const cuda::GpuIsa isa : bodies()) {
    const ScoredOnDevice device(c, max_rows, max_tokens);
    compare_scores(c, device.run(isa), want, cuda::gpu_isa_name(isa));
  }
}

constexpr std::pair<DType, int> kShapes[] = {{DType::bf16, 64},  {DType::bf16, 128},
                                             {DType::bf16, 256}, {DType::bf16, 80},
                                             {DType::f32, 64},   {DType::f32, 36}};

}  // namespace

TEST_SUITE("gpu/kernels/attention_scores") {
  TEST_CASE("1 to 16 rows of groups of any size agree with the reference, in chains and trees") {
    for (const auto& [dtype, d] : kShapes) {
      uint32_t n = 0;
      for (const int group : {1, 2, 4, 5, 7, 8})
        for (int rows = 1; rows <= 16; ++rows) {
          ++n;
          const bool fast = dtype == DType::bf16 && d != 80;
          if (!fast && n % 3 != 0) continue;
          check_scores(scored_spec(dtype, d, group, {{130 + rows, rows}, {64, 1}, {1030, rows}},
                                   n % 2 == 0));
        }
    }
  }

  TEST_CASE("the ends of pages, sequences without rows or keys, tentative rows") {
    for (const auto& [dtype, d] : kShapes)
      for (const bool tree : {false, true}) {
        check_scores(scored_spec(dtype, d, 4,
                                 {{1, 5},
                                  {31, 3},
                                  {32, 5},
                                  {33, 1},
                                  {63, 5},
                                  {64, 2},
                                  {65, 5},
                                  {127, 9},
                                  {0, 4},
                                  {640, 0},
                                  {128, 5}},
                                 tree));
        AttentionSpec later = scored_spec(dtype, d, 3, {{500, 2}, {70, 9}}, tree);
        add_tentative(later, {1, 40});
        check_scores(later);
      }
  }

  TEST_CASE("keys divided among blocks: one long sequence, several, more than a warp of them") {
    for (const auto& [dtype, d] : kShapes) {
      check_scores(scored_spec(dtype, d, 4, {{5000, 5}}, false));
      check_scores(scored_spec(dtype, d, 8, {{6000, 4}, {3000, 2}, {90, 4}}, true));
      std::vector<SeqShape> many;
      for (int i = 0; i < 40; ++i) many.push_back({i * 61 % 900, i % 4});
      check_scores(scored_spec(dtype, d, 4, many, false));
    }
  }

  TEST_CASE("more rows than a tile takes: trees of many nodes, and calls laid out for more") {
    for (const auto& [dtype, d] : kShapes) {
      check_scores(scored_spec(dtype, d, 4, {{700, 100}, {64, 3}, {129, 17}}, true));
      check_scores(scored_spec(dtype, d, 8, {{300, 16}, {70, 9}, {1000, 1}}, false));
      check_scores(scored_spec(dtype, d, 4, {{300, 5}, {70, 1}}, false), 60, 4096);
    }
  }

  TEST_CASE("outputs are those of a call without scores, and every run leaves the same") {
    for (const auto& [dtype, d] : kShapes)
      for (const int rows : {1, 5, 13}) {
        ScoredCase c(scored_spec(dtype, d, 4, {{2100, rows}, {700, 3}}, false));
        for (const cuda::GpuIsa isa : bodies()) {
          const ScoredOnDevice device(c);
          const std::vector<f16> scores = device.run(isa);
          const auto out = device.call.out_bytes();
          const auto lse = device.call.lse();
          const std::vector<f16> again = device.run(isa);
          CHECK(std::ranges::equal(scores, again, [](f16 a, f16 b) { return a.bits == b.bits; }));
          AttentionOnDevice plain(c.attention());
          plain.params().slot = device.call.params().slot;
          plain.params().page_table = device.call.params().page_table;
          plain.run(FewRowsMemory(plain.bounds()), false, isa);
          CHECK(plain.out_bytes() == out);
          CHECK(plain.lse() == lse);
        }
      }
  }

  TEST_CASE("scores beyond what f16 holds are infinite") {
    for (const auto& [dtype, d] : kShapes) {
      ScoredCase c(scored_spec(dtype, d, 2, {{100, 3}}, false));
      for (const float off : {-1e6f, 1e6f}) {
        const DeviceBuffer lse(std::vector<float>(4, off));
        ScoredOnDevice device(c);
        device.call.params().scores.lse = lse.as<float>();
        for (const cuda::GpuIsa isa : bodies())
          CHECK(to_float(device.run(isa)[0]) == (off < 0 ? INFINITY : -INFINITY));
      }
    }
  }
}
