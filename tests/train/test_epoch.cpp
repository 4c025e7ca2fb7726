#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "train_testing.h"

using namespace tandem;
using namespace tandem::train;
using test::of_rows;

namespace {

std::vector<int32_t> all_of(const Dataset& data) {
  std::vector<int32_t> all(static_cast<size_t>(data.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<std::vector<int32_t>> lists(const std::vector<MicroPlan>& plans) {
  std::vector<std::vector<int32_t>> all;
  for (const MicroPlan& plan : plans) all.push_back(plan.samples);
  return all;
}

BatchSettings settings(Batching batching, int64_t micro_tokens, int batch = 64) {
  BatchSettings s;
  s.batching = batching;
  s.micro_tokens = {micro_tokens};
  s.batch = batch;
  return s;
}

using Lists = std::vector<std::vector<int32_t>>;

}  // namespace

TEST_SUITE("train/epoch") {
  TEST_CASE("an order is a function of seed and epoch") {
    const auto order = shuffled(100, 7, 3);
    CHECK(order == shuffled(100, 7, 3));
    CHECK(order != shuffled(100, 7, 4));
    CHECK(order != shuffled(100, 8, 3));
    CHECK(std::set<int32_t>(order.begin(), order.end()).size() == 100);
    CHECK(*std::ranges::max_element(order) == 99);
    CHECK(shuffled(0, 7, 0).empty());
    // Written down: a resumed run of a later version goes on in the same order.
    CHECK(shuffled(8, 0, 0) == std::vector<int32_t>{4, 0, 1, 7, 3, 5, 6, 2});
  }

  TEST_CASE("every order of three samples is as likely") {
    std::map<std::vector<int32_t>, int> counts;
    for (int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[shuffled(3, 1, epoch)];
    REQUIRE(counts.size() == 6);
    // 1000 each, deviation 29: five of these.
    for (const auto& [order, n] : counts) CHECK(std::abs(n - 1000) < 145);
  }

  TEST_CASE("validation samples are drawn once, and the rest keeps its order") {
    const auto [train, val] = split_validation(50, 10, 7);
    CHECK(val.size() == 10);
    CHECK(std::ranges::is_sorted(train));
    CHECK(std::ranges::is_sorted(val));
    std::vector<int32_t> all = train;
    all.insert(all.end(), val.begin(), val.end());
    CHECK(std::set<int32_t>(all.begin(), all.end()).size() == 50);
    CHECK(val != split_validation(50, 10, 8).second);
    CHECK_THROWS_AS(split_validation(10, 10, 0), Error);
  }

  TEST_CASE("varlen: samples in turn, no padding") {
    const Dataset data = of_rows({4, 3, 5, 2, 6});
    const auto plans = divide(data, all_of(data), settings(Batching::varlen, 8));
    CHECK(lists(plans) == Lists{{0, 1}, {2, 3}, {4}});
    CHECK(plans[0].padded_rows == 0);
    BatchSettings one = settings(Batching::varlen, 100);
    one.micro_batch = 2;
    CHECK(lists(divide(data, all_of(data), one)) == Lists{{0, 1}, {2, 3}, {4}});
    // Nor has any more samples than a step: validation's neither.
    CHECK(lists(divide(data, all_of(data), settings(Batching::varlen, 100, 3))) ==
          Lists{{0, 1, 2}, {3, 4}});
  }

  TEST_CASE("pack: the longest first, each where least room is left") {
    const Dataset data = of_rows({4, 3, 5, 2, 6});
    const auto plans = divide(data, all_of(data), settings(Batching::pack, 10));
    CHECK(lists(plans) == Lists{{4, 0}, {2, 1, 3}});
    // Never more micro-batches than in turn, every sample once, none beyond the limit.
    PhiloxStream draw(3);
    for (int run = 0; run < 50; ++run) {
      std::vector<int> rows;
      for (int i = 0; i < 30; ++i) rows.push_back(1 + static_cast<int>(draw.below(40)));
      const Dataset random = of_rows(rows);
      const auto packed = divide(random, all_of(random), settings(Batching::pack, 64));
      const auto in_turn = divide(random, all_of(random), settings(Batching::varlen, 64));
      CHECK(packed.size() <= in_turn.size());
      std::multiset<int32_t> seen;
      for (const MicroPlan& plan : packed) {
        int64_t total = 0;
        for (const int32_t i : plan.samples) total += random[i].rows();
        CHECK(total <= 64);
        seen.insert(plan.samples.begin(), plan.samples.end());
      }
      CHECK(std::ranges::equal(seen, all_of(random)));
    }
  }

  TEST_CASE("pad: to the longest, in eights, padding counted") {
    const Dataset data = of_rows({4, 9, 5, 2});
    const auto plans = divide(data, all_of(data), settings(Batching::pad, 32));
    CHECK(lists(plans) == Lists{{0, 1}, {2, 3}});
    CHECK(plans[0].padded_rows == 16);
    CHECK(plans[1].padded_rows == 8);
    // A sample that fits alone is not rounded up beyond the limit.
    CHECK(divide(data, std::vector<int32_t>{1}, settings(Batching::pad, 9))[0].padded_rows == 9);
  }

  TEST_CASE("a micro-batch: documents, targets shifted by one, no target across a boundary") {
    DataSettings form;
    form.template_name = TemplateName::plain;
    const Dataset data =
        test::encoded({test::instruction("Say a", "a b"), test::instruction("Say c", "c")}, form);
    for (const int32_t padded : {0, 16}) {
      const MicroBatch batch = make_micro_batch(data, {.samples = {1, 0}, .padded_rows = padded});
      REQUIRE(batch.document_begin.size() == 3);
      REQUIRE(batch.tokens.size() == batch.targets.size());
      CHECK(batch.document_begin.back() == static_cast<int32_t>(batch.tokens.size()));
      int64_t n_targets = 0;
      for (size_t d = 0; d < 2; ++d) {
        const SampleView sample = data[d == 0 ? 1 : 0];
        const auto begin = static_cast<size_t>(batch.document_begin[d]);
        const auto end = static_cast<size_t>(batch.document_begin[d + 1]);
        CHECK(end - begin == size_t(padded == 0 ? sample.rows() : padded));
        std::vector<bool> is_supervised(sample.ids.size());
        for (const TokenSpan& span : sample.supervised)
          for (int32_t t = span.begin; t < span.end; ++t) is_supervised[size_t(t)] = true;
        for (size_t row = begin; row < end; ++row) {
          const size_t t = row - begin;
          const bool is_real = t + 1 < sample.ids.size();
          CHECK(batch.tokens[row] == (is_real ? sample.ids[t] : 0));
          CHECK(batch.targets[row] == (is_real && is_supervised[t + 1] ? sample.ids[t + 1] : -1));
          n_targets += batch.targets[row] >= 0;
        }
      }
      CHECK(n_targets == data.counts().supervised);
    }
  }

  TEST_CASE("steps of an epoch: every sample once, the rest in the last step or left out") {
    const Dataset data = of_rows(std::vector<int>(23, 5));
    std::vector<int32_t> some;
    for (int32_t i = 0; i < 23; i += 1)
      if (i != 4) some.push_back(i);
    BatchSettings s = settings(Batching::varlen, 64, 8);
    const Epoch epoch(data, some, s, 5, 0);
    CHECK(epoch.n_steps() == 3);
    CHECK(epoch.samples(2).size() == 6);
    std::set<int32_t> seen;
    for (int64_t step = 0; step < 3; ++step)
      for (const int32_t i : epoch.samples(step)) seen.insert(i);
    CHECK(std::ranges::equal(seen, some));
    CHECK(epoch.n_supervised(2) == 6);
    s.drop_last = true;
    CHECK(Epoch(data, some, s, 5, 0).n_steps() == 2);
    s.batch = 100;
    CHECK(Epoch(data, some, s, 5, 0).n_steps() == 1);  // or nothing would be learned
  }

  TEST_CASE("the order does not depend on how samples are batched") {
    const Dataset data = of_rows({4, 3, 5, 2, 6, 7, 1, 3, 8});
    const auto all = all_of(data);
    for (const Batching batching : {Batching::pad, Batching::varlen, Batching::pack}) {
      const Epoch epoch(data, all, settings(batching, 16, 4), 5, 2);
      const Epoch other(data, all, settings(Batching::varlen, 1000, 4), 5, 2);
      for (int64_t step = 0; step < epoch.n_steps(); ++step) {
        CHECK(std::ranges::equal(epoch.samples(step), other.samples(step)));
        std::multiset<int32_t> divided,
            whole(other.samples(step).begin(), other.samples(step).end());
        for (const MicroPlan& plan : epoch.step(step))
          divided.insert(plan.samples.begin(), plan.samples.end());
        CHECK(divided == whole);
      }
    }
  }

  TEST_CASE("counts: padding and fill") {
    const Dataset data = of_rows({4, 9, 5, 2});
    const auto all = all_of(data);
    const Epoch epoch(data, all, settings(Batching::pad, 32, 4), 0, 0);
    const EpochCounts padded = count(epoch, data);
    CHECK(padded.rows == 20);
    CHECK(padded.samples == 4);
    CHECK(padded.supervised == 4);
    CHECK(padded.steps == 1);
    CHECK(padded.padded_rows > padded.rows);
    CHECK(padded.most_rows <= 32);
    const Epoch packed(data, all, settings(Batching::pack, 20, 4), 0, 0);
    const EpochCounts full = count(packed, data);
    CHECK(full.micro_batches == 1);
    CHECK(full.most_rows == 20);
    CHECK(full.most_samples == 4);
    CHECK(full.padded_rows == 20);
  }
}
