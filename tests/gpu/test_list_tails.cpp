// Tails of lists that samples correct: joined to their lists, with weights of either sign.
#include <cmath>
#include <limits>
#include <numeric>

#include "base/convert.h"
#include "base/page.h"
#include "gpu/device_buffer.h"
#include "kernels/code/tail_means.h"
#include "ops/selection.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kHeads = 4, kKvHeads = 2, kPages = 32, kTokens = kPages * kPageTokens, kBegin = 4;
constexpr int kBlockRuns = 4, kMaxBlocks = 2, kMassStride = kBlockRuns * kMaxBlocks, kMost = 700;
constexpr float kInf = std::numeric_limits<float>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Lists and tails of a ragged step of three sequences; the last row belongs to none.
struct Case {
  int d;
  std::vector<int32_t> slot = {1, 0, 2}, row_begin = {0, 2, 3, 4}, ends = {900, 2000, kBegin};
  int n_rows = 5, n_lists = n_rows * kHeads;
  ActBuffer q, k, v;
  std::vector<int32_t> pages, blocks, ids, count;
  std::vector<float> masses, origin;
  std::vector<bf16> means;

  explicit Case(int width)
      : d(width),
        q(DType::bf16, at(n_lists * d)),
        k(DType::bf16, at(int64_t{3} * kTokens * kKvHeads * d)),
        v(DType::bf16, k.size()),
        pages(3 * kPages),
        blocks(3 * kMaxBlocks),
        ids(at(n_lists * kMost)),
        origin(at(n_lists), -kInf) {
    PhiloxStream stream(3, static_cast<uint32_t>(d));
    fill(q, stream, 1.0f);
    fill(k, stream, 1.0f);
    fill(v, stream, 1.0f);
    std::iota(pages.rbegin(), pages.rend(), 0);
    std::iota(blocks.rbegin(), blocks.rend(), 0);
    for (int32_t& id : ids) id = static_cast<int32_t>(stream.below(800));
    for (size_t i = 0; i < at(int64_t{3} * kMaxBlocks * kKvHeads * kBlockRuns * d); ++i)
      means.push_back(to_bf16(static_cast<float>(stream.uniform() - 0.4)));
    for (int list = 0; list < n_lists; ++list) {
      const int runs = runs_of(list);
      count.push_back(list / kHeads == 4 ? 0 : list % kHeads == 2 ? kMost : 5 + list);
      if (runs > 0) origin[at(list)] = 0.5f * static_cast<float>(list % 3) - 1;
      // Weights of one sign, of both with a sum above 0, and of more than a list's taken off.
      for (int r = 0; r < kMassStride; ++r) {
        const float x = static_cast<float>(1 + stream.uniform()) * static_cast<float>(kMost);
        masses.push_back(r >= runs                          ? NAN
                         : list % kHeads == 1               ? -100 * x
                         : list % kHeads == 3 && r % 3 == 0 ? -0.5f * x
                                                            : x);
      }
    }
  }
  int slot_of(int list) const {
    const int row = list / kHeads;
    return row >= row_begin.back() ? -1 : slot[row < 2 ? 0 : at(row - 1)];
  }
  int runs_of(int list) const {
    const int s = slot_of(list);
    return s < 0 ? 0 : (ends[at(s)] - kBegin + kMeanKeys - 1) / kMeanKeys;
  }
  const bf16* mean(int list, int run) const {
    const int block = blocks[at(slot_of(list) * kMaxBlocks + run / kBlockRuns)];
    const int kv_head = list % kHeads / (kHeads / kKvHeads);
    return means.data() + int64_t{(block * kKvHeads + kv_head) * kBlockRuns + run % kBlockRuns} * d;
  }
};

struct States {
  std::vector<float> o, lse;
};

/// corrected    with tails, joined; else the lists alone
States attend(Case& c, bool corrected) {
  const int parts = attend_lists_parts(kMost, corrected);
  const DeviceBuffer o(at(int64_t{parts} * c.n_lists * c.d) * sizeof(float)),
      lse(at(parts * c.n_lists) * sizeof(float)),
      q = on_device(c.q), k = on_device(c.k), v = on_device(c.v), pages(c.pages), slot(c.slot),
      begin(c.row_begin), ids(c.ids), count(c.count), masses(c.masses), origin(c.origin),
      means(c.means), blocks(c.blocks), ends(c.ends);
  AttendListsParams p{.o = o.as<float>(),
                      .lse = lse.as<float>(),
                      .q = q.raw(),
                      .k_pool = k.raw(),
                      .v_pool = v.raw(),
                      .page_table = pages.as<int32_t>(),
                      .slot = slot.as<int32_t>(),
                      .row_begin = begin.as<int32_t>(),
                      .n_rows = c.n_rows,
                      .n_seqs = 3,
                      .max_pages = kPages,
                      .n_heads = kHeads,
                      .n_kv_heads = kKvHeads,
                      .d = c.d,
                      .dtype = DType::bf16,
                      .scale = 1 / std::sqrt(static_cast<float>(c.d)),
                      .rows = {0, c.n_rows},
                      .lists = {.ids = ids.as<int32_t>(),
                                .count = count.as<int32_t>(),
                                .stride = kMost,
                                .most = kMost},
                      .tails = {}};
  if (corrected)
    p.tails = {.masses = masses.as<float>(),
               .origin = origin.as<float>(),
               .corrected = true,
               .mass_stride = kMassStride,
               .means = means.as<bf16>(),
               .block_stride = int64_t{kKvHeads} * kBlockRuns * c.d,
               .head_stride = int64_t{kBlockRuns} * c.d,
               .blocks = blocks.as<int32_t>(),
               .max_blocks = kMaxBlocks,
               .block_runs = kBlockRuns,
               .ends = ends.as<int32_t>(),
               .begin = kBegin};
  ops::attend_lists(p, queue().stream());
  return {o.vector<float>(), lse.vector<float>()};
}

}  // namespace

TEST_SUITE("gpu/kernels/list_tails") {
  TEST_CASE("the first state is what the CPU's rule makes of the list and its tail") {
    for (const int d : {32, 80, 128, 256}) {
      CAPTURE(d);
      Case c(d);
      const States lists = attend(c, false), joined = attend(c, true);
      const int parts = attend_lists_parts(kMost, false);
      double worst = 0, worst_lse = 0;
      int left_out = 0;
      for (int list = 0; list < c.n_lists; ++list) {
        CAPTURE(list);
        const auto state = [&](int part) { return at(int64_t{part} * c.n_lists + list); };
        for (int part = 1; part <= parts; ++part) CHECK(joined.lse[state(part)] == -kInf);
        // The parts of the list, and then its tail.
        double sum = 0;
        std::vector<double> values(at(d));
        for (int part = 0; part < parts; ++part) {
          const double weight = std::exp(double{lists.lse[state(part)]});
          sum += weight;
          for (int i = 0; i < d; ++i)
            values[at(i)] += weight * lists.o[state(part) * at(d) + at(i)];
        }
        std::vector<float> o(at(d));
        for (int i = 0; i < d; ++i)
          o[at(i)] = sum > 0 ? static_cast<float>(values[at(i)] / sum) : 0.0f;
        auto lse = static_cast<float>(std::log(sum));
        const float before = lse;
        std::vector<MeanRows> rows;
        for (int r = 0; r < c.runs_of(list); ++r) rows.push_back({c.mean(list, r), 1});
        add_means_ref({.o = o.data(),
                       .lse = &lse,
                       .masses = c.masses.data() + list * kMassStride,
                       .rows = rows.data(),
                       .n_rows = static_cast<int>(rows.size()),
                       .d = d,
                       .origin = c.origin[at(list)]});
        left_out += !rows.empty() && lse == before ? 1 : 0;
        if (joined.lse[state(0)] != lse)  // both may be -inf
          worst_lse = worse(worst_lse, std::abs(double{joined.lse[state(0)]} - lse));
        for (int i = 0; i < d; ++i)
          worst = worse(worst, std::abs(double{joined.o[state(0) * at(d) + at(i)]} - o[at(i)]));
      }
      CHECK(worst <= 2e-5);
      CHECK(worst_lse <= 2e-5);
      CHECK(left_out == 3);  // those whose tails take off more than there is
    }
  }
}
