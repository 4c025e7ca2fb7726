// Keys and values in eight to four bits behind the first page and before the newest 64 tokens.
#include <doctest/doctest.h>

#include "error_text.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::NumberType;

namespace {

constexpr int kDim = 64;
constexpr NumberType kTypes[] = {NumberType::int8, NumberType::k8v4, NumberType::k6v4,
                                 NumberType::int4};

recipe::Cache cache_of(NumberType dtype, std::vector<int> wide = {0}) {
  recipe::Cache c;
  c.dtype = dtype;
  c.wide_layers = std::move(wide);
  return c;
}

PolicyRig::Shape shape_of(int window = 0) {
  return {
      .geometry = with_window(
          {.n_layers = 3, .n_heads = 6, .n_kv_heads = 2, .head_dim = kDim, .dtype = DType::bf16},
          window, 2),
      .max_seqs = 4,
      .max_tokens = 4096,
      .max_rows = 512};
}

PolicyRig rig(NumberType dtype, std::vector<int> wide = {0}, int window = 0) {
  return {shape_of(window), {cache_of(dtype, std::move(wide))}, cone_data(kDim)};
}

/// |a - b| / |b| over all rows.
double relative_error(const std::vector<Row>& a, const std::vector<Row>& b) {
  double difference = 0, square = 0;
  for (size_t r = 0; r < a.size(); ++r)
    for (size_t i = 0; i < a[r].size(); ++i) {
      difference += std::pow(double{a[r][i]} - b[r][i], 2);
      square += std::pow(double{b[r][i]}, 2);
    }
  return std::sqrt(difference / square);
}

/// Rounds of drafted tokens of which some are kept, as far as the cache allows; each row's output.
std::vector<Row> extend_in_rounds(PolicyRig& rig, int slot, const Ids& ids, uint64_t seed) {
  PhiloxStream draw(seed);
  std::vector<Row> out;
  while (out.size() < ids.size()) {
    const int length = rig.cache.length(slot);
    const size_t left = ids.size() - out.size();
    Ids drafted(ids.begin() + static_cast<std::ptrdiff_t>(out.size()), ids.end());
    drafted.resize(1 + draw.below(9), 7);
    const int room = rig.cache.next_change(slot, {}) - length;
    const int kept =
        std::min({1 + static_cast<int>(draw.below(static_cast<uint32_t>(drafted.size()))),
                  static_cast<int>(left), room});
    const kv::SeqRows rows[] = {{slot, static_cast<int>(drafted.size())}};
    const kv::Step step = rig.cache.begin({.rows = rows});
    const std::vector<Row> attended = rig.attend(step, drafted);
    out.insert(out.end(), attended.begin(), attended.begin() + kept);
    const int all_kept[] = {kept};
    rig.cache.commit(step, all_kept);
  }
  return out;
}

}  // namespace

TEST_SUITE("kv/quantized") {
  TEST_CASE("attention is that over bf16 within the error of the codes") {
    const Ids prompt = tokens(0, 700), after = tokens(5000, 40);
    PolicyRig exact = rig(NumberType::automatic);
    const std::vector<Row> want = exact.extend_each(exact.sequence(prompt), after);
    double before = 0;
    // Values without a common part keep the relative error of one value, the root of .0095 in four
    // bits and of 4.7e-5 in eight. Keys add to it.
    const double most[] = {.01, .0975, .1, .12};
    for (size_t i = 0; i < std::size(kTypes); ++i) {
      CAPTURE(i);
      PolicyRig coded = rig(kTypes[i], {});
      const double error = relative_error(coded.extend_each(coded.sequence(prompt), after), want);
      CHECK(error < most[i]);
      CHECK(error > before);
      before = error;
    }
  }

  TEST_CASE("a wide layer is in eight bits") {
    const Ids prompt = tokens(0, 500), after = tokens(5000, 8);
    PolicyRig wide = rig(NumberType::int4, {0, 1, 2}), eight = rig(NumberType::int8);
    CHECK(wide.extend_each(wide.sequence(prompt), after) ==
          eight.extend_each(eight.sequence(prompt), after));
  }

  TEST_CASE("short texts are in bf16, and a window's layers always") {
    const Ids prompt = tokens(0, 100), after = tokens(5000, 27);
    PolicyRig exact = rig(NumberType::automatic), coded = rig(NumberType::int4);
    CHECK(max_difference(coded.extend_each(coded.sequence(prompt), after),
                         exact.extend_each(exact.sequence(prompt), after)) < 1e-2);
    PolicyRig windows = rig(NumberType::automatic, {0}, 100), both = rig(NumberType::int4, {}, 100);
    const Ids longer = tokens(0, 900);
    const std::vector<Row> want = windows.extend_each(windows.sequence(longer), after),
                           got = both.extend_each(both.sequence(longer), after);
    const auto last = static_cast<std::ptrdiff_t>(6 * kDim);
    for (size_t r = 0; r < want.size(); ++r)
      CHECK(Row(want[r].end() - last, want[r].end()) == Row(got[r].end() - last, got[r].end()));
  }

  TEST_CASE("chunks of a prompt, batches and rounds do not show") {
    const Ids prompt = tokens(0, 333), after = tokens(5000, 300);
    for (const NumberType dtype : kTypes) {
      PolicyRig plain = rig(dtype), chunks = rig(dtype), rounds = rig(dtype), batch = rig(dtype);
      const std::vector<Row> want = plain.extend_each(plain.sequence(prompt), after);
      const int slot = chunks.cache.create();
      chunks.prefill(slot, prompt, 50);
      CHECK(chunks.extend_each(slot, after) == want);
      CHECK(extend_in_rounds(rounds, rounds.sequence(prompt), after, 3) == want);
      // Beside a longer and a shorter text.
      const int other = batch.sequence(tokens(2000, 1000)), mine = batch.sequence(prompt),
                third = batch.sequence(tokens(3000, 20));
      for (size_t i = 0; i < after.size(); ++i) {
        const kv::SeqRows rows[] = {{other, 1}, {mine, 1}, {third, 1}};
        const Ids ids = {after[i] + 1000, after[i], after[i] + 2000};
        const kv::Step step = batch.cache.begin({.rows = rows});
        REQUIRE(batch.attend(step, ids)[1] == want[i]);
        batch.cache.commit(step);
      }
    }
  }

  TEST_CASE("forks read what one sequence reads, wherever they part") {
    const Ids after = tokens(5000, 260), others = tokens(7000, 260);
    for (const int length : {70, 127, 150, 191, 192, 320, 500}) {
      CAPTURE(length);
      const Ids prompt = tokens(0, length);
      PolicyRig plain = rig(NumberType::int4), forked = rig(NumberType::int4);
      const std::vector<Row> want = plain.extend_each(plain.sequence(prompt), after),
                             want_other = plain.extend_each(plain.sequence(prompt), others);
      const int slot = forked.sequence(prompt), copy = forked.cache.fork(slot, {});
      for (size_t i = 0; i < after.size(); ++i) {
        REQUIRE(forked.extend(slot, {&after[i], 1})[0] == want[i]);
        REQUIRE(forked.extend(copy, {&others[i], 1})[0] == want_other[i]);
      }
    }
  }

  TEST_CASE("prompts of forks that part before the first code have frames of their own") {
    const Ids prompt = tokens(0, 150), one = tokens(5000, 400), two = tokens(8000, 300),
              after = tokens(3000, 5);
    PolicyRig plain = rig(NumberType::int4), forked = rig(NumberType::int4);
    const auto alone = [&](const Ids& rest) {
      const int slot = plain.sequence(prompt);
      plain.prefill(slot, rest);
      return plain.extend_each(slot, after);
    };
    const int slot = forked.sequence(prompt), copy = forked.cache.fork(slot, {});
    forked.prefill(slot, one);
    forked.prefill(copy, two);
    CHECK(forked.extend_each(slot, after) == alone(one));
    CHECK(forked.extend_each(copy, after) == alone(two));
  }

  TEST_CASE("a cut down to the mark is exact, below it within the error of the codes") {
    const Ids prompt = tokens(0, 400), wrong = tokens(9000, 20), after = tokens(5000, 200);
    PolicyRig plain = rig(NumberType::int4), cut = rig(NumberType::int4);
    const std::vector<Row> want = plain.extend_each(plain.sequence(prompt), after);
    const int slot = cut.sequence(prompt);
    cut.append(slot, wrong);
    cut.cache.truncate(slot, 400);
    CHECK(cut.extend_each(slot, after) == want);
    // 600 tokens: the mark is at 512.
    for (const int n : {511, 500, 449, 448, 400, 130, 65, 64, 63, 10, 0}) {
      CAPTURE(n);
      PolicyRig exact = rig(NumberType::automatic), again = rig(NumberType::int4);
      Ids text = prompt;
      text.insert(text.end(), after.begin(), after.end());
      const int back = again.sequence(text);
      again.cache.truncate(back, n);
      text.resize(static_cast<size_t>(n));
      const int fresh = n > 0 ? exact.sequence(text) : exact.cache.create();
      const std::vector<Row> got = again.extend_each(back, after);
      CHECK(all_finite(got));
      CHECK(relative_error(got, exact.extend_each(fresh, after)) < .2);
    }
  }

  TEST_CASE("a prompt that goes on keeps the codes it has") {
    PolicyRig exact = rig(NumberType::automatic);
    const Ids first = tokens(0, 500), second = tokens(1000, 300), after = tokens(5000, 30);
    const int whole = exact.sequence(first);
    exact.prefill(whole, second);
    const std::vector<Row> want = exact.extend_each(whole, after);
    for (const NumberType dtype : kTypes) {
      PolicyRig coded = rig(dtype), one_by_one = rig(dtype);
      const int slot = coded.sequence(first), other = one_by_one.sequence(first);
      coded.prefill(slot, second, 64);
      one_by_one.append(other, second);
      const std::vector<Row> got = coded.extend_each(slot, after);
      CHECK(relative_error(got, want) < .2);
      // Frames are those of the first prompt in both.
      CHECK(got == one_by_one.extend_each(other, after));
    }
  }

  TEST_CASE("bytes of a token") {
    const auto bytes = [](NumberType dtype, std::vector<int> wide) {
      PolicyRig r({.geometry = {.n_layers = 1,
                                .n_heads = 1,
                                .n_kv_heads = 1,
                                .head_dim = 128,
                                .dtype = DType::bf16}},
                  {cache_of(dtype, std::move(wide))}, cone_data(128));
      return r.cache.residence().token_bytes(0);
    };
    CHECK(bytes(NumberType::int8, {}) == 262);
    CHECK(bytes(NumberType::k8v4, {}) == 198);
    CHECK(bytes(NumberType::k6v4, {}) == 166);
    CHECK(bytes(NumberType::int4, {}) == 134);
    CHECK(bytes(NumberType::int4, {0}) == 262);
    CHECK(bytes(NumberType::automatic, {0}) == 512);
  }

  TEST_CASE("models and policies that are not supported are refused by name") {
    const auto refusal = [](PolicyRig::Shape shape, std::vector<recipe::Cache> caches) {
      return error_text([&] { PolicyRig(shape, std::move(caches), cone_data(kDim)); });
    };
    PolicyRig::Shape f32 = shape_of(), odd = shape_of();
    f32.geometry.dtype = DType::f32;
    odd.geometry.head_dim = 80;
    const recipe::Cache int4 = cache_of(NumberType::int4);
    CHECK(refusal(f32, {int4}).find("needs a bf16 model") != std::string::npos);
    CHECK(refusal(odd, {int4}).find("found 80") != std::string::npos);
    CHECK(refusal(shape_of(), {int4, int4}).find("does not support 2 policies") !=
          std::string::npos);
    CHECK(refusal(shape_of(), {cache_of(NumberType::int4, {0, 3})}).find("names layer 3") !=
          std::string::npos);
    PolicyRig::Shape windows = shape_of();
    windows.geometry = with_window(windows.geometry, 64, 0);
    CHECK(refusal(windows, {int4}).find("windows in all layers") != std::string::npos);
    recipe::Cache quest = int4;
    quest.kind = recipe::CacheKind::quest;
    CHECK(refusal(shape_of(), {quest}).find("does not support kind quest") != std::string::npos);
  }
}
