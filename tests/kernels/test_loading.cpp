#include <cstring>
#include <limits>
#include <set>

#include "kernels/number_patterns.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// Bytes at an odd address, as a mapped file may have them.
struct RawBytes {
  std::vector<char> memory;
  size_t offset;
  RawBytes(const void* data, size_t n, size_t at) : memory(n + at), offset(at) {
    std::memcpy(memory.data() + at, data, n);
  }
  const void* data() const { return memory.data() + offset; }
};

template <class In>
void check_convert(const std::vector<In>& in, DType from, DType to) {
  const auto n = static_cast<int64_t>(in.size());
  const auto blocks = static_cast<int>((n + kConvertBlock - 1) / kConvertBlock);
  ActBuffer want(to, in.size());
  convert_ref({.out = want.data(), .in = in.data(), .n = n, .from = from, .to = to}, {0, blocks});
  for (const Isa isa : usable_isas())
    for (const size_t offset : {0u, 1u, 3u}) {
      CAPTURE(isa_name(isa));
      CAPTURE(offset);
      const RawBytes raw(in.data(), in.size() * sizeof(In), offset);
      ActBuffer got(to, in.size(), offset);
      const ConvertParams p{.out = got.data(), .in = raw.data(), .n = n, .from = from, .to = to};
      cpu_table(isa).convert(p, {1, blocks});
      cpu_table(isa).convert(p, {0, 1});
      for (size_t i = 0; i < in.size(); ++i) {
        CAPTURE(i);
        REQUIRE(same_number(got.get(i), want.get(i)));
      }
    }
}

}  // namespace

TEST_SUITE("kernels/convert") {
  TEST_CASE("every number, every pair of types, every variant, bit for bit") {
    for_every_conversion(
        [](const auto& numbers, DType from, DType to) { check_convert(numbers, from, to); });
  }

  TEST_CASE("tails") {
    for (const size_t n : {1u, 2u, 15u, 17u, 4095u, 4097u})
      check_convert(std::vector<uint16_t>(n, 0x3c01), DType::f16, DType::bf16);
  }
}

TEST_SUITE("kernels/embed") {
  TEST_CASE("rows of any type at any address, every variant") {
    const auto half = all_half_patterns();
    for (const Isa isa : usable_isas())
      for (const DType from : {DType::f16, DType::bf16, DType::f32})
        for (const int dim : {1, 7, 16, 33, 257})
          for (const size_t offset : {0u, 1u, 2u}) {
            CAPTURE(isa_name(isa));
            CAPTURE(dtype_name(from));
            CAPTURE(dim);
            CAPTURE(offset);
            const size_t vocab = 65536 * 2 / dtype_bytes(from) / static_cast<size_t>(dim);
            const RawBytes table(half.data(), vocab * static_cast<size_t>(dim) * dtype_bytes(from),
                                 offset);
            const std::vector<int32_t> ids = {static_cast<int32_t>(vocab) - 1, 0,
                                              static_cast<int32_t>(vocab / 2), 0};
            const auto n = ids.size() * static_cast<size_t>(dim);
            Buffer<float> got(n, offset), want(n);
            EmbedParams p{.out = got.data(),
                          .table = table.data(),
                          .ids = ids.data(),
                          .n_rows = 4,
                          .dim = dim,
                          .from = from};
            cpu_table(isa).embed(p, {2, 4});
            cpu_table(isa).embed(p, {0, 2});
            p.out = want.data();
            embed_ref(p, {0, 4});
            for (size_t i = 0; i < n; ++i) {
              CAPTURE(i);
              REQUIRE(same_number(got[i], want[i]));
            }
          }
  }
}

TEST_SUITE("kernels/fill_random") {
  TEST_CASE("every variant gives the reference's bits, wherever a piece begins and ends") {
    constexpr int64_t kCount = 3 * kFillBlock + 77;
    constexpr int kBlocks = 4;
    for (const Isa isa : usable_isas())
      for (const DType to : {DType::f32, DType::bf16})
        for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128 * 5 + 31},
                                    (int64_t{1} << 36) - 1000}) {
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(to));
          CAPTURE(first);
          ActBuffer got(to, kCount, 1), want(to, kCount);
          FillRandomParams p{.out = got.data(),
                             .seed = 0x123456789abcdefull,
                             .tensor = 42,
                             .first = first,
                             .count = kCount,
                             .stddev = 0.02f,
                             .to = to};
          cpu_table(isa).fill_random(p, {2, kBlocks});
          cpu_table(isa).fill_random(p, {0, 2});
          p.out = want.data();
          fill_random_ref(p, {0, kBlocks});
          REQUIRE_CLOSE(got, want, ([](size_t) { return 0.0; }));
        }
  }

  TEST_CASE("a row generated alone is the row of the whole tensor; bf16 is f32 rounded") {
    constexpr int64_t kRow = 333, kRows = 40;
    ActBuffer all(DType::f32, kRow * kRows), half(DType::bf16, kRow * kRows), row(DType::f32, kRow);
    FillRandomParams p{.out = all.data(),
                       .seed = 5,
                       .tensor = 1,
                       .first = 0,
                       .count = kRow * kRows,
                       .stddev = 1.0f,
                       .to = DType::f32};
    cpu_table().fill_random(p, {0, 4});
    p.out = half.data();
    p.to = DType::bf16;
    cpu_table().fill_random(p, {0, 4});
    for (size_t i = 0; i < all.size(); ++i) REQUIRE(half.half[i].bits == to_bf16(all.get(i)).bits);
    p.out = row.data();
    p.to = DType::f32;
    p.count = kRow;
    for (const int64_t r : {0, 1, 17, 39}) {
      p.first = r * kRow;
      cpu_table().fill_random(p, {0, 1});
      for (int64_t i = 0; i < kRow; ++i)
        REQUIRE(row.get(static_cast<size_t>(i)) == all.get(static_cast<size_t>(r * kRow + i)));
    }
  }

  TEST_CASE("mean, deviation and independence of seeds and tensors") {
    constexpr int64_t kCount = 1 << 18;
    ActBuffer a(DType::f32, kCount), b(DType::f32, kCount), c(DType::f32, kCount);
    FillRandomParams p{.out = a.data(),
                       .seed = 1,
                       .tensor = 0,
                       .first = 0,
                       .count = kCount,
                       .stddev = 0.5f,
                       .to = DType::f32};
    cpu_table().fill_random(p, {0, kCount / kFillBlock});
    p.out = b.data();
    p.tensor = 1;
    cpu_table().fill_random(p, {0, kCount / kFillBlock});
    p.out = c.data();
    p.tensor = 0;
    p.seed = uint64_t{1} << 32 | 1;
    cpu_table().fill_random(p, {0, kCount / kFillBlock});
    double sum = 0, square = 0, ab = 0, ac = 0, next = 0;
    for (size_t i = 0; i < kCount; ++i) {
      sum += a.get(i);
      square += double{a.get(i)} * a.get(i);
      ab += double{a.get(i)} * b.get(i);
      ac += double{a.get(i)} * c.get(i);
      if (i > 0) next += double{a.get(i)} * a.get(i - 1);
    }
    // Standard errors: mean sigma/sqrt(n) = 9.8e-4; products sigma^2/sqrt(n) = 4.9e-4; the variance
    // of a uniform, sigma^2 sqrt(0.8/n) = 4.4e-4. Five of each.
    CHECK(std::abs(sum / kCount) < 4.9e-3);
    CHECK(std::abs(square / kCount - 0.25) < 2.2e-3);
    CHECK(std::abs(ab / kCount) < 2.5e-3);
    CHECK(std::abs(ac / kCount) < 2.5e-3);
    CHECK(std::abs(next / kCount) < 2.5e-3);
  }
}
