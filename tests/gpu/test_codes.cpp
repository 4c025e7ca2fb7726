// Key codes on a GPU: the index that kernels make of pages, and the keys that rows choose by it.
#include <cmath>

#include "gpu/coded_expected.h"
#include "kernels/selection/select_top.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::test::coded;

namespace {

struct Frame {
  std::vector<float> center, axis;
  CodeUnits units;
};
Frame frame_of(const Case& c, int seq, int head) {
  const auto all = c.frames.vector<float>();
  const auto first = all.begin() + (int64_t{seq} * c.x.n_kv_heads + head) * c.frame_floats();
  const int d = c.x.d;
  return {{first, first + d}, {first + d, first + 2 * d}, {first[2 * d], first[2 * d + 1]}};
}

/// A key or query in the frame's rotated coordinates.
std::vector<float> rotated(const Case& c, const Frame& frame, std::vector<float> row, bool centre,
                           float& share) {
  share = 0;
  for (int i = 0; i < c.x.d; ++i) {
    if (centre) row[at(i)] -= frame.center[at(i)];
    share += row[at(i)] * frame.axis[at(i)];
  }
  for (int i = 0; i < c.x.d; ++i) row[at(i)] -= share * frame.axis[at(i)];
  row.resize(at(c.dims));
  rotate_rows_ref({.rows = row.data(), .signs = c.signs.data(), .dims = c.dims}, {0, 1});
  return row;
}

/// How many of the refined candidates hold a share of the weights (policies/hybrid.cpp).
int keys_of_mass(std::span<const float> refined, std::span<const float> scores, double share,
                 int most) {
  const float top = *std::ranges::max_element(refined);
  double all = 0, sum = 0;
  for (const float score : scores) all += std::exp(double{std::min(score, top)} - top);
  std::vector<double> mass(256);
  std::vector<int> count(256);
  for (const float score : refined) {
    const auto bin = static_cast<size_t>(std::min(255.0f, (top - score) * 16));
    mass[bin] += std::exp(double{score} - top);
    ++count[bin];
  }
  int n = 0;
  for (size_t bin = 0; bin < 256 && sum < share * all; ++bin) {
    sum += mass[bin];
    n += count[bin];
  }
  return std::clamp(n, std::min(64, most), most);
}

Expected expect(const Case& c, const Choice& got, int slot, int number, int n) {
  const int kv_head = number % c.n_heads / c.x.group;
  const CpuCodes codes = codes_of(c, slot, kv_head);
  const DeviceCodeQuery& query = got.queries[at(number)];
  const int8_t* q = got.q.data() + int64_t{number} * c.dims;
  CodeQuery on_cpu{.sums = nullptr,
                   .q = q,
                   .bias = 0,
                   .total = static_cast<int32_t>(query.total),
                   .sign_gain = query.sign_gain,
                   .gain = query.gain,
                   .axis_gain = query.axis_gain};
  CHECK(on_cpu.total == std::accumulate(q, q + c.dims, 0));
  std::vector<float> scores(at(n + kCodeKeys));
  code_scan_ref({.scores = scores.data(),
                 .score_stride = n,
                 .groups = codes.groups.data(),
                 .queries = &on_cpu,
                 .n_queries = 1,
                 .dims = c.dims},
                {0, n});
  scores.resize(at(n));
  Expected e;
  int wanted = std::min(n, std::max(64, static_cast<int>(std::lround(c.x.exact * n))));
  e.ids.resize(kSinks);
  std::iota(e.ids.begin(), e.ids.end(), 0);
  e.masses.resize(at(c.n_masses(n)));
  if (wanted == n) {
    e.ids.resize(at(kSinks + n));
    std::iota(e.ids.begin(), e.ids.end(), 0);
    return e;
  }
  const int m = std::min(n, std::max(2 * wanted, static_cast<int>(std::lround(c.x.refine * n))));
  const Candidates candidates(scores.data(), n, m, wanted);
  e.too_few = candidates.reach <= wanted;
  if (!e.too_few) CHECK(query.floor == candidates.floor);
  std::vector<bool> below(at(n));  // the floor: such keys count with their own estimates
  for (int i = 0; i < n; ++i) below[at(i)] = scores[at(i)] < candidates.floor;
  const auto found = static_cast<int>(candidates.keys.size());
  std::vector<int32_t> best(at(n + 16));
  std::vector<float> refined(at(found)), scratch(at(n + 16));
  if (c.x.bits > 1)
    code_refine_ref({.refined = refined.data(),
                     .scores = scores.data(),
                     .keys = candidates.keys.data(),
                     .n = found,
                     .first = 0,
                     .groups = codes.groups.data(),
                     .low = codes.low.data(),
                     .query = &on_cpu,
                     .dims = c.dims,
                     .bits = c.x.bits});
  else
    for (int i = 0; i < found; ++i) refined[at(i)] = scores[at(candidates.keys[at(i)])];
  if (c.x.mass > 0) {
    // Bins are added until they hold the share, to which rounding may add one or not.
    const int chosen = got.count[at(number)] - kSinks,
              least = keys_of_mass(refined, scores, c.x.mass * (1 - 1e-5), wanted),
              most = keys_of_mass(refined, scores, c.x.mass * (1 + 1e-5), wanted);
    CHECK((chosen == least || chosen == most));
    wanted = chosen;
  }
  select_top_ref({.ids = best.data(),
                  .threshold = &e.threshold,
                  .scores = refined.data(),
                  .n = found,
                  .m = wanted,
                  .first_id = 0,
                  .scratch = scratch.data()});
  for (int i = 0; i < wanted; ++i) {
    const int32_t key = candidates.keys[at(best[at(i)])];
    e.ids.push_back(kSinks + key);
    e.exact_mass += std::exp(double{scores[at(key)]} - e.threshold);
    scores[at(key)] = -kInf;
  }
  for (int i = 0; i < n; ++i) {
    const double over = double{scores[at(i)]} - e.threshold;
    e.masses[at(c.mass_of(slot, kv_head, i))] +=
        std::exp(below[at(i)] ? over : std::min(0.0, over));
  }
  e.scores = std::move(scores);
  return e;
}

/// Checks every list of a case. Returns how many floors too few keys reached.
int check_choice(const Case& c) {
  const Choice got = choose(c);
  int too_few = 0;
  for (int row = 0; row < c.n_rows + c.x.padding; ++row)
    for (int head = 0; head < c.n_heads; ++head) {
      CAPTURE(row);
      CAPTURE(head);
      const int number = row * c.n_heads + head;
      const int slot = row < c.n_rows ? c.slots[at(c.seq_of_row(row))] : -1;
      const int n = slot < 0 ? 0 : c.x.indexed[at(slot)];
      if (n == 0) {
        CHECK(got.count[at(number)] == 0);
        CHECK(got.origin[at(number)] == -kInf);
        continue;
      }
      const Expected e = expect(c, got, slot, number, n);
      CHECK(got.list(number) == e.ids);
      if (!e.scores.empty() && !c.x.by_cluster) {
        const auto left = got.tail_scores.begin() + number * got.score_stride;
        CHECK(std::equal(e.scores.begin(), e.scores.end(), left));
        CHECK(got.threshold[at(number)] == e.threshold);
        CHECK(got.exact_mass[at(number)] == doctest::Approx(e.exact_mass).epsilon(1e-5));
      }
      too_few += e.too_few ? 1 : 0;
      double worst = 0, most = 0;
      for (size_t r = 0; r < e.masses.size(); ++r) {
        const double mass = got.masses[at(number * got.mass_stride) + r];
        worst = worse(worst, std::abs(mass - e.masses[r]));
        most = std::max(most, e.masses[r]);
      }
      CHECK(worst <= c.mass_tolerance(n, most));
      if (most > 0)
        CHECK(got.origin[at(number)] ==
              doctest::Approx(e.threshold + got.queries[at(number)].center));
    }
  return too_few;
}
/// By run and by cluster.
int check_choice(Setting s) {
  const int too_few = check_choice(Case(s));
  s.by_cluster = true;
  CHECK(check_choice(Case(s)) == too_few);
  return too_few;
}

}  // namespace

TEST_SUITE("gpu/codes") {
  TEST_CASE("an index made from eight bits is that of the rows which they stand for") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 80, 128}) {
        CAPTURE(d);
        Setting setting{
            .d = d, .dtype = dtype, .indexed = {1500, 70}, .rows = {1, 1}, .held = true};
        const Case wide(setting);
        setting.eight_bit = true;
        const Case narrow(setting);
        queue().wait();
        CHECK(narrow.frames.vector<float>() == wide.frames.vector<float>());
        for (int seq = 0; seq < 2; ++seq)
          for (int head = 0; head < setting.n_kv_heads; ++head) {
            const CpuCodes a = codes_of(narrow, seq, head), b = codes_of(wide, seq, head);
            CHECK(a.groups == b.groups);
            CHECK(a.low == b.low);
          }
        // The first runs, which all are written.
        const auto a = narrow.means.vector<uint16_t>(), b = wide.means.vector<uint16_t>();
        const int64_t first = int64_t{wide.blocks[0]} * setting.n_kv_heads * wide.runs * d;
        CHECK(std::equal(a.begin() + first, a.begin() + first + wide.runs * d, b.begin() + first));
      }
  }

  TEST_CASE("codes: the bits of keys are the CPU's") {
    for (const auto& [d, bits, dtype] : {std::tuple{64, 3, DType::bf16},
                                         {128, 3, DType::bf16},
                                         {80, 2, DType::f32},
                                         {32, 1, DType::bf16},
                                         {256, 2, DType::bf16},
                                         {16, 3, DType::f32}}) {
      CAPTURE(d);
      CAPTURE(bits);
      const Case c({.d = d,
                    .bits = bits,
                    .dtype = dtype,
                    .indexed = {1700, 0, 129},
                    .rows = {1, 1, 1},
                    .capacity = 1024});
      int64_t wrong = 0, total = 0, scales_off = 0;
      for (const int seq : {0, 2})
        for (int head = 0; head < c.x.n_kv_heads; ++head) {
          const int n = c.x.indexed[at(seq)];
          const Frame frame = frame_of(c, seq, head);
          double off = 0;
          float most_norm = 0, most_share = 0;
          std::vector<double> mean(at(d));
          std::vector<float> rows, shares;
          for (int i = 0; i < n; ++i) {
            const std::vector<float> key = c.key(seq, head, kSinks + i);
            for (int j = 0; j < d; ++j) mean[at(j)] += key[at(j)] / static_cast<float>(n);
            float share = 0, norm = 0;
            const std::vector<float> row = rotated(c, frame, key, true, share);
            for (const float v : row) norm += v * v;
            most_norm = std::max(most_norm, std::sqrt(norm));
            most_share = std::max(most_share, std::abs(share));
            rows.insert(rows.end(), row.begin(), row.end());
            shares.push_back(share);
          }
          for (int j = 0; j < d; ++j) off = worse(off, std::abs(mean[at(j)] - frame.center[at(j)]));
          CHECK(off <= 1e-5);
          CHECK(frame.units.scale ==
                doctest::Approx(code_scale_unit(most_norm, c.dims, bits)).epsilon(1e-4));
          CHECK(frame.units.axis == doctest::Approx(1.5f * most_share / 127).epsilon(1e-4));
          const CpuCodes got = codes_of(c, seq, head);
          CpuCodes want{std::vector<uint8_t>(got.groups.size()),
                        std::vector<uint8_t>(got.low.size())};
          code_rows({.groups = want.groups.data(),
                     .low = want.low.data(),
                     .rows = rows.data(),
                     .shares = shares.data(),
                     .units = frame.units,
                     .dims = c.dims,
                     .bits = bits,
                     .first = 0},
                    {0, n});
          for (size_t i = 0; i < got.groups.size(); ++i) {
            const bool scale = int64_t(i) % code_group_bytes(c.dims) >= 16 * c.dims;
            const int difference = got.groups[i] ^ want.groups[i];
            if (scale)
              scales_off += difference != 0 ? 1 : 0;
            else
              wrong += __builtin_popcount(static_cast<unsigned>(difference));
          }
          for (size_t i = 0; i < got.low.size(); ++i)
            wrong += __builtin_popcount(static_cast<unsigned>(got.low[i] ^ want.low[i]));
          total += int64_t{n} * c.dims * bits;
          // Means of values.
          const auto means = c.means.vector<bf16>();
          double worst = 0;
          for (int run = 0; run * kMeanKeys < n; ++run)
            for (int j = 0; j < d; ++j) {
              const int end = std::min(n, (run + 1) * kMeanKeys);
              double sum = 0;
              for (int i = run * kMeanKeys; i < end; ++i)
                sum += c.value(seq, head, kSinks + i)[at(j)];
              const int block =
                  c.blocks[at(int64_t{seq} * c.max_blocks + run * kMeanKeys / c.x.capacity)];
              const int64_t mean_at = ((int64_t{block} * c.x.n_kv_heads + head) * c.runs +
                                       run * kMeanKeys % c.x.capacity / kMeanKeys) *
                                          d +
                                      j;
              worst = worse(worst,
                            std::abs(to_float(means[at(mean_at)]) - sum / (end - run * kMeanKeys)));
            }
          CHECK(worst <= 0.005);
        }
      // One step number of a coordinate at a bound may turn several of its bits.
      CHECK(wrong <= std::max<int64_t>(3, total / 100000));
      CHECK(scales_off <= 3);
      MESSAGE("d " << d << ", " << bits << " bits: " << wrong << " of " << total << " bits differ");
    }
  }

  TEST_CASE("choice: from equal codes the CPU's sets, in every shape") {
    std::vector<Setting> shapes = usual_shapes();
    shapes.push_back({.d = 128, .bits = 2, .group = 1, .indexed = {2500}, .rows = {3}});
    for (const Setting& s : shapes) {
      CAPTURE(s.d);
      CAPTURE(s.bits);
      CAPTURE(s.group);
      (void)check_choice(s);
    }
  }

  TEST_CASE("choice: long texts, whose scores below a floor are not kept") {
    for (const Setting& s : std::vector<Setting>{
             {.d = 64, .group = 4, .n_kv_heads = 1, .indexed = {40000}, .rows = {1}},
             {.d = 128, .group = 3, .n_kv_heads = 1, .indexed = {20000, 33000}, .rows = {1, 1}}})
      CHECK(check_choice(s) == 0);
  }

  TEST_CASE("choice: by mass, as many of the best as hold it") {
    std::set<int> counts;
    for (const double mass : {0.05, 0.3, 0.6, 0.9, 1.0})
      for (const Setting& s : std::vector<Setting>{
               {.indexed = {3000, 700, 65, 0}, .rows = {2, 1, 1, 1}, .padding = 1, .exact = 0.4},
               {.bits = 1, .n_kv_heads = 1, .indexed = {1500}, .rows = {1}, .exact = 0.2},
               {.d = 128, .n_kv_heads = 1, .indexed = {20000}, .rows = {1}, .exact = 0.02}}) {
        CAPTURE(mass);
        CAPTURE(s.indexed[0]);
        Setting by_mass = s;
        by_mass.mass = mass;
        (void)check_choice(by_mass);
        for (const int32_t count : choose(Case(by_mass)).count) counts.insert(count);
      }
    CHECK(counts.size() > 10);
  }

  TEST_CASE("choice: a floor that too few keys reach") {
    CHECK(check_choice(Setting{.d = 64,
                               .group = 2,
                               .n_kv_heads = 1,
                               .indexed = {20000},
                               .rows = {1},
                               .clustered = true}) > 0);
  }

  TEST_CASE("choice: the same bits on every run") {
    for (const bool by_cluster : {false, true}) {
      const Case c({.d = 64, .indexed = {3000, 700}, .rows = {1, 2}, .by_cluster = by_cluster});
      const Choice a = choose(c), b = choose(c);
      CHECK(a.ids == b.ids);
      CHECK(a.masses == b.masses);
      CHECK(a.origin == b.origin);
    }
  }

  TEST_CASE("tails: means by mass, next to lists") {
    const Case c({.d = 64, .indexed = {3000, 700, 0}, .rows = {1, 2, 1}, .padding = 1});
    const Choice got = choose(c);
    const int rows = c.n_rows + c.x.padding, lists = c.n_lists();
    const int most = kSinks + 75, parts = attend_lists_parts(most, true);
    const DeviceBuffer o(at(int64_t{parts} * lists * c.x.d) * 4),
        lse(at(int64_t{parts} * lists) * 4), ids(got.ids), count(got.count), masses(got.masses),
        origin(got.origin);
    ops::attend_lists({.o = o.as<float>(),
                       .lse = lse.as<float>(),
                       .q = c.q.raw(),
                       .k_pool = c.k.raw(),
                       .v_pool = c.v.raw(),
                       .page_table = c.pages.as<int32_t>(),
                       .slot = c.slot.as<int32_t>(),
                       .row_begin = c.begins.as<int32_t>(),
                       .n_rows = rows,
                       .n_seqs = 3,
                       .max_pages = c.max_pages,
                       .n_heads = c.n_heads,
                       .n_kv_heads = c.x.n_kv_heads,
                       .d = c.x.d,
                       .dtype = c.x.dtype,
                       .scale = 0.125f,
                       .rows = {0, rows},
                       .lists = {.ids = ids.as<int32_t>(),
                                 .count = count.as<int32_t>(),
                                 .stride = got.stride,
                                 .most = most},
                       .tails = {.masses = masses.as<float>(),
                                 .origin = origin.as<float>(),
                                 .mass_stride = got.mass_stride,
                                 .means = c.means.as<bf16>(),
                                 .block_stride = c.x.n_kv_heads * c.runs * c.x.d,
                                 .head_stride = c.runs * c.x.d,
                                 .blocks = c.block.as<int32_t>(),
                                 .max_blocks = c.max_blocks,
                                 .block_runs = static_cast<int>(c.runs),
                                 .ends = c.end.as<int32_t>(),
                                 .begin = kSinks}},
                      queue().stream());
    const auto all_o = o.vector<float>(), all_lse = lse.vector<float>();
    const auto means = c.means.vector<bf16>();
    double worst = 0;
    for (int number = 0; number < lists; ++number) {
      const int row = number / c.n_heads, head = number % c.n_heads, kv_head = head / c.x.group;
      const int slot = row < c.n_rows ? c.slots[at(c.seq_of_row(row))] : -1;
      const int n = slot < 0 ? 0 : c.x.indexed[at(slot)];
      const size_t state = at(int64_t{parts - 1} * lists + number);
      if (n == 0) {
        for (int part = 0; part < parts; ++part)
          CHECK(all_lse[at(int64_t{part} * lists + number)] == -kInf);
        continue;
      }
      double sum = 0;
      std::vector<double> want(at(c.x.d));
      for (int run = 0; run * kMeanKeys < n; ++run) {
        const double mass = got.masses[at(number * got.mass_stride + run)];
        const int64_t block = c.blocks[at(int64_t{slot} * c.max_blocks)];
        sum += mass;
        for (int j = 0; j < c.x.d; ++j)
          want[at(j)] +=
              mass *
              to_float(means[at(((block * c.x.n_kv_heads + kv_head) * c.runs + run) * c.x.d + j)]);
      }
      CHECK(all_lse[state] ==
            doctest::Approx(got.origin[at(number)] + std::log(sum)).epsilon(1e-5));
      for (int j = 0; j < c.x.d; ++j)
        worst = worse(worst, std::abs(all_o[state * at(c.x.d) + at(j)] - want[at(j)] / sum));
    }
    CHECK(worst <= 1e-5);
  }
}
