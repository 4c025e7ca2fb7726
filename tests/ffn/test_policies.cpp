#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "error_text.h"
#include "ffn/policy_rig.h"

using namespace tandem;
using namespace tandem::test;

namespace {

recipe::Sparse sparse(recipe::SparseKind kind, double keep = 0.5, double refresh = 0) {
  recipe::Sparse s;
  s.kind = kind;
  s.keep = {keep};
  s.refresh = {refresh};
  return s;
}

/// The squares of a statistic in double, row by row as Sirius, section 1 has it.
std::vector<double> statistic(const std::vector<float>& rows, int columns) {
  std::vector<double> s(static_cast<size_t>(columns));
  for (size_t at = 0; at < rows.size(); at += s.size()) {
    double norm = 0;
    for (size_t j = 0; j < s.size(); ++j) norm += double{rows[at + j]} * rows[at + j];
    for (size_t j = 0; norm > 0 && j < s.size(); ++j)
      s[j] += double{rows[at + j]} * rows[at + j] / norm;
  }
  return s;
}

std::vector<int32_t> best(const std::vector<double>& scores, int keep) {
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::sort(ids, [&](int32_t a, int32_t b) {
    return std::pair(scores[static_cast<size_t>(a)], a) >
           std::pair(scores[static_cast<size_t>(b)], b);
  });
  ids.resize(static_cast<size_t>(keep));
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

TEST_SUITE("ffn/policies") {
  TEST_CASE("griffin keeps what a naive statistic in double does, int(keep F) of it") {
    for (const double keep : {0.3, 0.5, 0.7, 1.0}) {
      CAPTURE(keep);
      const PolicyRig rig(sparse(recipe::SparseKind::griffin, keep));
      const int n = static_cast<int>(keep * 172);
      CHECK(rig.policy->most_channels() == n);
      std::vector<float> rows = random_rows(40, 172, 3);
      std::fill_n(rows.begin() + 5 * 172, 172, 0.0f);  // a row without a norm
      rig.observe(1, rows);
      rig.policy->on_prompt(1);
      for (const int layer : {0, 1}) CHECK(rig.list(layer, 1) == best(statistic(rows, 172), n));
    }
  }

  TEST_CASE("griffin's list is the same however a prompt is divided, and its rows ordered") {
    const std::vector<float> rows = random_rows(33, 172, 5);
    const PolicyRig rig(sparse(recipe::SparseKind::griffin));
    rig.observe(0, rows);
    for (int r = 0; r < 33; r += 4) {  // and from the back
      const int n = std::min(4, 33 - r);
      rig.observe(1, {rows.begin() + r * 172, rows.begin() + (r + n) * 172});
      rig.observe(2, {rows.end() - (r + n) * 172, rows.end() - r * 172});
    }
    for (const int slot : {0, 1, 2}) rig.policy->on_prompt(slot);
    CHECK(rig.list(0, 1) == rig.list(0, 0));
    CHECK(rig.list(0, 2) == rig.list(0, 0));
  }

  TEST_CASE("sums of any division have the same bits") {
    const std::vector<float> rows = random_rows(50, 61, 9);
    std::vector<float> whole(61), parts(61), scales(ops::kScaledRows);
    const auto add = [&](std::vector<float>& to, int begin, int end) {
      float counted = 0;
      const kv::Step s = PolicyRig::step(kv::Phase::prefill, {0}, end - begin);
      ops::add_squares(
          {.to = {.sums = to.data(), .rows = &counted},
           .x = {const_cast<float*>(rows.data()) + begin * 61, DType::f32, {end - begin, 61}},
           .scales = scales.data()},
          s.arrays, 61);
    };
    add(whole, 0, 50);
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 18}, {18, 19}, {19, 50}})
      add(parts, begin, end);
    CHECK(whole == parts);
  }

  TEST_CASE("griffin: forks copy, slots that end are empty again") {
    const PolicyRig rig(sparse(recipe::SparseKind::griffin));
    const std::vector<float> first = random_rows(9, 172, 1), second = random_rows(9, 172, 2);
    rig.observe(0, first);
    rig.policy->on_prompt(0);
    rig.policy->on_fork(0, 1);
    CHECK(rig.list(1, 1) == rig.list(1, 0));
    rig.observe(1, second);  // adds to what the fork has
    rig.policy->on_prompt(1);
    std::vector<float> both = first;
    both.insert(both.end(), second.begin(), second.end());
    CHECK(rig.list(0, 1) == best(statistic(both, 172), 86));
    CHECK(rig.list(0, 0) == best(statistic(first, 172), 86));
    rig.policy->on_release(1);
    rig.observe(1, second);
    rig.policy->on_prompt(1);
    CHECK(rig.list(0, 1) == best(statistic(second, 172), 86));
  }

  TEST_CASE("griffin refreshed: rows of checks blend in, and channels are chosen again") {
    const PolicyRig rig(sparse(recipe::SparseKind::griffin, 0.5, 0.25));
    const std::vector<float> prompt = random_rows(20, 172, 1), check = random_rows(8, 172, 2);
    rig.observe(1, prompt);
    rig.policy->on_prompt(1);
    rig.observe(1, check, kv::Phase::extend);
    const std::vector<double> of_prompt = statistic(prompt, 172), of_check = statistic(check, 172);
    std::vector<double> mixed;
    for (size_t j = 0; j < of_prompt.size(); ++j)
      mixed.push_back(.75 * of_prompt[j] / 20 + .25 * of_check[j] / 8);
    CHECK(rig.list(0, 1) == best(mixed, 86));
    CHECK(rig.list(0, 1) != best(of_prompt, 86));
  }

  TEST_CASE("cats drops int((1 - keep) F) gates of the smallest sums, of equal ones the first") {
    const PolicyRig rig(sparse(recipe::SparseKind::cats, 0.3));
    CHECK(rig.policy->most_channels() == 172 - static_cast<int>((1 - 0.3) * 172));
    std::vector<float> rows = random_rows(3, 172, 8);
    const auto sums = [&] {
      std::vector<double> all(172);
      for (size_t i = 0; i < rows.size(); ++i) {
        const float x = std::abs(rows[i]);
        all[i % 172] = static_cast<float>(all[i % 172]) + x;
      }
      return all;
    };
    const Tensor gate(rows.data(), DType::f32, {3, 172});
    CHECK(rig.list(gate) == best(sums(), rig.policy->most_channels()));
    std::ranges::fill(rows, -0.5f);
    const std::vector<int32_t> last = rig.list(gate);
    CHECK(last.front() == 172 - rig.policy->most_channels());
    CHECK(last.back() == 171);
  }

  TEST_CASE("cats weighed: gates times what up and down add to them") {
    recipe::Sparse s = sparse(recipe::SparseKind::cats);
    s.weighted = true;
    const PolicyRig rig(s, 16, 1);
    CHECK(rig.policy->needs().gate_up);
    // Up of channel j is j + 1 in every row, down is not read here: its norms are zero but for ...
    std::vector<float> gate_up(2 * 32, 1.0f);
    for (size_t r = 0; r < 2; ++r)
      for (size_t j = 0; j < 16; ++j) gate_up[r * 32 + 16 + j] = static_cast<float>(j + 1);
    const kv::Step prompt = PolicyRig::step(kv::Phase::prefill, {0}, 2);
    rig.policy->observe(0, prompt,
                        {.product = {}, .gate_up = {gate_up.data(), DType::f32, {2, 32}}});
    std::vector<float> norms(16, 1.0f), scores(16), gate(16, 1.0f), sums(16), counted = {2};
    for (size_t j = 0; j < 16; ++j) sums[j] = 2 * static_cast<float>((j + 1) * (j + 1));
    norms[15] = 0;
    const kv::Step one = PolicyRig::step(kv::Phase::extend, {0}, 1);
    ops::score_channels({.scores = scores.data(),
                         .gate = {gate.data(), DType::f32, {1, 16}},
                         .weights = {.sums = sums.data(), .rows = counted.data()},
                         .norms = norms.data()},
                        one.arrays);
    for (size_t j = 0; j < 15; ++j) CHECK(scores[j] == doctest::Approx(double(j + 1)));
    CHECK(scores[15] == 0);
  }

  TEST_CASE("no channel left is refused by name") {
    recipe::Sparse s = sparse(recipe::SparseKind::griffin, 0.005);
    const ffn::Bounds bounds{.shape = {.n_layers = 1, .dim = 8, .ffn_dim = 172}};
    CHECK(error_text([&] { (void)ffn::make_policy(s, bounds); }) ==
          "sparse.keep: is 0.005 and keeps none of a layer's 172 FFN neurons");
    CHECK(hint_text([&] { (void)ffn::make_policy(s, bounds); }) == "set at least 0.00581");
  }
}
