#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/convert.h"
#include "error_text.h"
#include "group_source.h"
#include "model/adapter_lists.h"

using namespace tandem;
using namespace tandem::model;
using namespace tandem::test;

namespace {

std::vector<std::byte> as(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i)
    if (dtype == DType::f32) {
      std::memcpy(bytes.data() + i * sizeof(float), &values[i], sizeof(float));
    } else {
      const bf16 x = to_bf16(values[i]);
      std::memcpy(bytes.data() + i * sizeof x, &x, sizeof x);
    }
  return bytes;
}

/// W + sum_i weight_i (value_i - W), element by element; the value alone where only one slice at
/// weight 1 has it.
std::vector<float> reference(const List& adapters, MatrixId id) {
  const std::vector<float> before = floats_of(*base(), id);
  const int64_t cols = shape_of(id.role, config())[1];
  std::vector<float> sum = before, alone(before.size());
  std::vector<int> n(before.size());
  std::vector<bool> whole(before.size(), true);
  for (const WeightedAdapter& a : adapters) {
    const auto& adapter = std::get<Adapter>(a.adapter);
    const auto index = adapter.index(id);
    const std::vector<float> values = adapter.values(id);
    const auto count = static_cast<int64_t>(index.size());
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
      const bool columns = ends_in_stream(id.role);
      const int64_t row = columns ? i / count : index[static_cast<size_t>(i / cols)];
      const int64_t col = columns ? index[static_cast<size_t>(i % count)] : i % cols;
      const auto at = static_cast<size_t>(row * cols + col);
      sum[at] += a.weight * (values[static_cast<size_t>(i)] - before[at]);
      alone[at] = values[static_cast<size_t>(i)];
      whole[at] = a.weight == 1;
      ++n[at];
    }
  }
  for (size_t i = 0; i < sum.size(); ++i)
    if (n[i] == 1 && whole[i]) sum[i] = alone[i];
  return sum;
}

/// Calls check({weight, layer}, dtype) for all matrices.
template <class Check>
void each_matrix(const Check& check) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (int layer = 0; layer < config().n_layers; ++layer)
      for (const Role weight : kLayerRoles) check({weight, layer}, dtype);
}

}  // namespace

TEST_SUITE("model/fused_source") {
  TEST_CASE("slices that share nothing: their values, the base's bytes, in any order") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10), b = slices(folder / "b", kB, 20);
    for (const float by : {1.0f, 0.3f, -2.0f}) {
      CAPTURE(by);
      const auto one = fused(list(WeightedAdapter{a}, WeightedAdapter{b, by})),
                 other = fused(list(WeightedAdapter{b, by}, WeightedAdapter{a}));
      const List both = list(WeightedAdapter{a}, WeightedAdapter{b, by});
      each_matrix([&](MatrixId id, DType dtype) {
        const auto found = bytes_of(*one, id, dtype);
        REQUIRE(found == bytes_of(*other, id, dtype));
        REQUIRE(found == as(reference(both, id), dtype));
        const int64_t n = shape_of(id.role, config())[0];
        const auto row_bytes = found.size() / static_cast<size_t>(n);
        for (int64_t begin = 0; begin < n; begin += 7) {
          const auto part = bytes_of(*one, id, dtype, begin, std::min(n, begin + 3));
          REQUIRE(std::equal(
              part.begin(), part.end(),
              found.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(begin) * row_bytes)));
        }
      });
    }
    // The sum would give other bits: the rule of single slices is one that counts.
    const std::vector<float> before = floats_of(*base(), {Role::up, 0});
    const std::vector<float> values = a.values({Role::up, 0});
    size_t differ = 0;
    for (size_t i = 0; i < 12; ++i) differ += before[i] + (values[i] - before[i]) != values[i];
    CHECK(differ > 0);
  }

  TEST_CASE("slices that overlap: the sum in f32 in the order given, rounded once") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10), c = slices(folder / "c", kC, 30);
    for (const float by : {1.0f, 0.5f}) {
      const List ac = list(WeightedAdapter{a, by}, WeightedAdapter{c, 0.7f}),
                 ca = list(WeightedAdapter{c, 0.7f}, WeightedAdapter{a, by});
      bool differ = false;
      each_matrix([&](MatrixId id, DType dtype) {
        const auto one = bytes_of(*fused(ac), id, dtype), other = bytes_of(*fused(ca), id, dtype);
        REQUIRE(one == as(reference(ac, id), dtype));
        REQUIRE(other == as(reference(ca, id), dtype));
        differ = differ || one != other;
      });
      CHECK(differ);  // in the last bit of a few
    }
    // The same twice at a half is once, but for rounding; at 1 it is twice the change.
    const List halves = list(WeightedAdapter{a, 0.5f}, WeightedAdapter{a, 0.5f});
    const auto half = floats_of(*fused(halves), {Role::up, 0}),
               whole = floats_of(*fused(list(WeightedAdapter{a})), {Role::up, 0});
    for (size_t i = 0; i < half.size(); ++i) CHECK(std::abs(half[i] - whole[i]) < 1e-7f);
  }

  TEST_CASE("factors: one at weight 1 is its merge; more add their changes; weight 0 none") {
    const TemporaryFolder folder;
    const auto a = slices(folder / "a", kA, 10);
    for (const bool dora : {false, true}) {
      CAPTURE(dora);
      const auto l = factors(folder / "l", dora, 40), k = factors(folder / "k", false, 60);
      const auto alone = fused(list(WeightedAdapter{l}));
      const auto mixed =
          fused(list(WeightedAdapter{l, 0.5f}, WeightedAdapter{k, -2}, WeightedAdapter{a}));
      const auto zero = fused(list(WeightedAdapter{a, 0}, WeightedAdapter{l, 0}));
      each_matrix([&](MatrixId id, DType dtype) {
        std::vector<float> merged = floats_of(*base(), id);
        const std::vector<float> before = merged;
        const int64_t n = shape_of(id.role, config())[0], cols = shape_of(id.role, config())[1];
        l.merge(id, 0, n, merged);
        REQUIRE(bytes_of(*alone, id, dtype) == as(merged, dtype));
        REQUIRE(bytes_of(*zero, id, dtype) == bytes_of(*base(), id, dtype));
        if (dtype == DType::bf16) return;
        std::vector<float> other = before;
        k.merge(id, 0, n, other);
        const std::vector<float> found = floats_of(*mixed, id);
        const auto index = a.index(id);
        const std::vector<float> sliced = floats_of(*fused(list(WeightedAdapter{a})), id);
        for (size_t i = 0; i < found.size(); ++i) {
          const double want = before[i] + 0.5 * (double{merged[i]} - before[i]) -
                              2 * (double{other[i]} - before[i]) + (double{sliced[i]} - before[i]);
          const auto col = static_cast<int32_t>(static_cast<int64_t>(i) % cols),
                     row = static_cast<int32_t>(static_cast<int64_t>(i) / cols);
          const bool inside =
              std::ranges::binary_search(index, ends_in_stream(id.role) ? col : row);
          REQUIRE(std::abs(found[i] - want) < 1e-6);
          if (!inside && !l.holds(id)) REQUIRE(found[i] == before[i]);
        }
      });
    }
  }

  TEST_CASE("a base in groups gives matrices without adapters as stored, others as numbers") {
    const TemporaryFolder folder;
    const Adapter a = slices(folder / "a", kA, 1);
    std::vector<WeightedAdapter> adapters;
    adapters.push_back({a});
    const GroupSource base(config());
    const auto source =
        fused_source(std::make_unique<GroupSource>(config()), std::move(adapters), config());
    const MatrixId plain = {Role::gate, 0}, merged = {Role::up, 0};
    CHECK(native_rows(*source, plain, 300, 12) == native_rows(base, plain, 300, 12));
    CHECK((source->native(merged) == DType::f32));
    std::vector<bf16> found(size_t{300} * 12), before(found.size());
    source->rows(merged, 0, 300, DType::bf16, found.data());
    base.rows(merged, 0, 300, DType::bf16, before.data());
    const auto bytes = [](std::vector<bf16>& numbers) {
      return std::as_bytes(std::span<const bf16>(numbers));
    };
    CHECK_FALSE(std::ranges::equal(bytes(found), bytes(before)));
    a.replace(merged, 0, 300, DType::bf16, before.data());
    CHECK(std::ranges::equal(bytes(found), bytes(before)));
    std::vector<std::byte> out(size_t{300} * 35);
    CHECK(input_error_text([&] {
            source->rows(merged, 0, 300, GroupSource::kFormat, out.data());
          }).ends_with("is stored as f32, which cannot be converted to i4 g64 f16 integer"));
  }
}
