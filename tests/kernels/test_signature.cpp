#include "kernels/signature/signature.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SignatureScanFn* scan_variant(Isa isa) {
  constexpr SignatureScanFn* kVariants[] = {signature_scan_scalar, signature_scan_avx2,
                                            signature_scan_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), std::size(kVariants) - 1)];
}

SelectTopFn* select_variant(Isa isa) {
  constexpr SelectTopFn* kVariants[] = {select_top_scalar, select_top_avx2, select_top_avx512};
  return kVariants[std::min(static_cast<size_t>(isa), std::size(kVariants) - 1)];
}

size_t padded(int n) { return static_cast<size_t>((n + 15) / 16 * 16); }

/// Random signatures, norms of both signs and any curve, so that any slip shows.
struct ScanCase {
  int words, n, n_queries;
  Buffer<uint32_t> signatures, queries;
  Buffer<bf16> norms;
  SimilarityCurve similarity;

  ScanCase(int words_, int n_, int n_queries_, size_t offset)
      : words(words_),
        n(n_),
        n_queries(n_queries_),
        signatures(padded(n_) * static_cast<size_t>(words_), offset),
        queries(static_cast<size_t>(n_queries_ * words_), offset),
        norms(static_cast<size_t>(n_), offset) {
    PhiloxStream stream(11, static_cast<uint32_t>(words * 100000 + n));
    const auto word = [&] { return static_cast<uint32_t>(stream.uniform() * 0x1p32); };
    for (size_t i = 0; i < signatures.size(); ++i) signatures[i] = word();
    for (size_t i = 0; i < queries.size(); ++i) queries[i] = word();
    for (size_t i = 0; i < norms.size(); ++i) norms[i] = to_bf16(random_float(stream, 9.0f));
    similarity = {random_float(stream, 1.0f), random_float(stream, 100.0f),
                  random_float(stream, 1000.0f)};
    // The ends of the curve: one key equal to the first query and one opposite to it.
    if (n < 15) return;
    for (int w = 0; w < words; ++w) {
      signatures[static_cast<size_t>(w * 16 + 3)] = queries[static_cast<size_t>(w)];
      signatures[static_cast<size_t>(w * 16 + 14)] = ~queries[static_cast<size_t>(w)];
    }
  }
  int64_t stride() const { return static_cast<int64_t>(padded(n)) + 16; }

  std::vector<float> run(SignatureScanFn* scan, Range keys) {
    std::vector<float> scores(static_cast<size_t>(stride() * n_queries), -77.0f);
    scan({.scores = scores.data(),
          .score_stride = stride(),
          .signatures = signatures.data(),
          .norms = norms.data(),
          .queries = queries.data(),
          .words = words,
          .n_queries = n_queries,
          .n_keys = n,
          .similarity = similarity},
         keys);
    return scores;
  }
};

/// Requires equal scores for the keys and untouched memory beyond the next multiple of 16.
void check_scan(ScanCase& c, SignatureScanFn* scan, Range keys) {
  CAPTURE(keys.begin);
  CAPTURE(keys.end);
  const auto got = c.run(scan, keys), want = c.run(signature_scan_ref, keys);
  for (int q = 0; q < c.n_queries; ++q)
    for (int64_t i = 0; i < c.stride(); ++i) {
      if (i >= keys.end && i < static_cast<int64_t>(padded(keys.end))) continue;
      const auto at = static_cast<size_t>(q * c.stride() + i);
      if (got[at] == want[at]) continue;
      CAPTURE(q);
      CAPTURE(i);
      REQUIRE(got[at] == want[at]);
    }
}

}  // namespace

TEST_SUITE("kernels/signature_scan") {
  TEST_CASE("every variant equals the reference") {
    for (const Isa isa : usable_isas()) {
      if (isa > Isa::avx512) continue;
      for (const int words : {1, 2, 4, 6, 7, 8})
        for (const int n : {1, 15, 16, 17, 100, 4096, 32768})
          for (const int n_queries : {1, 3, 4, 8}) {
            if (n == 32768 && (words % 4 != 0 || n_queries % 4 != 0)) continue;  // for time's sake
            CAPTURE(isa_name(isa));
            CAPTURE(words);
            CAPTURE(n);
            CAPTURE(n_queries);
            ScanCase c(words, n, n_queries, static_cast<size_t>(n % 3));
            check_scan(c, scan_variant(isa), {0, n});
          }
    }
  }

  TEST_CASE("parts of the keys, and more words than a byte counts") {
    for (const Isa isa : usable_isas()) {
      CAPTURE(isa_name(isa));
      ScanCase c(8, 1000, 5, 1);
      for (const Range keys : {Range{0, 16}, Range{16, 17}, Range{48, 560}, Range{512, 1000},
                               Range{992, 1000}, Range{32, 32}})
        check_scan(c, scan_variant(isa), keys);
      for (const int words : {31, 32, 33, 70}) {
        ScanCase wide(words, 40, 2, 0);
        check_scan(wide, scan_variant(isa), {0, 40});
      }
    }
  }

  TEST_CASE("the curve is the cosine of the angle and rises with every equal bit") {
    for (const int bits : {32, 64, 96, 128, 256, 512, 1024, 2048}) {
      CAPTURE(bits);
      const int words = bits / 32, n = bits + 1;
      std::vector<uint32_t> signatures(padded(n) * static_cast<size_t>(words)),
          query(static_cast<size_t>(words));
      const std::vector<bf16> norms(static_cast<size_t>(n), to_bf16(1.0f));
      for (int key = 0; key < n; ++key)  // whose last `key` bits are the query's
        for (int bit = 0; bit < bits - key; ++bit)
          signatures[static_cast<size_t>((key / 16 * words + bit / 32) * 16 + key % 16)] |=
              1u << (bit % 32);
      std::vector<float> scores(padded(n));
      signature_scan_ref({.scores = scores.data(),
                          .score_stride = 0,
                          .signatures = signatures.data(),
                          .norms = norms.data(),
                          .queries = query.data(),
                          .words = words,
                          .n_queries = 1,
                          .n_keys = n,
                          .similarity = similarity_curve(bits)},
                         {0, n});
      for (int equal = 0; equal < n; ++equal) {
        CAPTURE(equal);
        const double angle = std::numbers::pi * (1 - static_cast<double>(equal) / bits);
        const float got = scores[static_cast<size_t>(equal)];
        REQUIRE(std::abs(got - std::cos(angle)) <= 7e-5);
        if (equal > 0) REQUIRE(got > scores[static_cast<size_t>(equal) - 1]);
      }
    }
  }

  TEST_CASE("packed bits are found where the scan reads them") {
    constexpr int kKeys = 37, kFirst = 21, kWords = 7, kBitWords = 4;
    PhiloxStream stream(12);
    std::vector<uint64_t> bits(kKeys * kBitWords);
    for (uint64_t& b : bits) b = static_cast<uint64_t>(stream.uniform() * 0x1p53) << 11;
    for (uint64_t& b : bits) b ^= static_cast<uint64_t>(stream.uniform() * 0x1p53);
    std::vector<uint32_t> signatures(64 * kWords, 5u);
    const SignaturePackParams p{.signatures = signatures.data(),
                                .bits = bits.data(),
                                .bit_words = kBitWords,
                                .words = kWords,
                                .first = kFirst};
    signature_pack(p, {0, 20});
    signature_pack(p, {20, kKeys});
    for (int key = 0; key < 64; ++key)
      for (int w = 0; w < kWords; ++w) {
        const int at = (key / 16 * kWords + w) * 16 + key % 16;
        const uint32_t got = signatures[static_cast<size_t>(at)];
        uint32_t want = 5;
        if (key >= kFirst && key < kFirst + kKeys) {
          want = 0;
          for (int b = 0; b < 32; ++b) {
            const int bit = 32 * w + b;
            const uint64_t from = bits[static_cast<size_t>((key - kFirst) * kBitWords + bit / 64)];
            want |= static_cast<uint32_t>((from >> (bit % 64)) & 1) << b;
          }
        }
        REQUIRE(got == want);
      }
  }
}

namespace {

using Scores = std::vector<float>;

Scores make_scores(const char* kind, int n) {
  const std::string_view name = kind;
  PhiloxStream stream(13, static_cast<uint32_t>(n));
  Scores x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) {
    const float uniform = random_float(stream, 1.0f);
    x[i] = uniform * uniform * uniform;
    if (name == "constant") x[i] = -2.5f;
    if (name == "ties") x[i] = std::floor(6 * x[i]);
    if (name == "ascending") x[i] = static_cast<float>(i) - 500.0f;
    if (name == "descending") x[i] = 500.0f - static_cast<float>(i);
    if (name == "masked" && i % 3 != 1) x[i] = -kInf;
    if (name == "zeros") x[i] = uniform > 0.3f ? 0.0f : uniform < -0.3f ? -0.0f : uniform;
    if (name == "wide") x[i] = std::ldexp(x[i], static_cast<int>(i % 250) - 125);
    if (name == "clustered") x[i] += i % 95 == 0 ? 4.0f : 0.0f;  // where the sample looks
    if (name == "hidden") x[i] += i % 95 == 1 ? 4.0f : 0.0f;     // where it does not
    if (name == "infinite") x[i] = i % 7 == 0 ? kInf : x[i];
  }
  return x;
}

constexpr const char* kKinds[] = {"random",     "constant", "ties",    "ascending",
                                  "descending", "masked",   "zeros",   "wide",
                                  "clustered",  "hidden",   "infinite"};

struct Selected {
  std::vector<int32_t> ids;
  float threshold;
};

Selected select(SelectTopFn* fn, const Scores& scores, int m, int first_id) {
  const auto n = static_cast<int>(scores.size());
  constexpr int32_t kUntouched = -123;
  // An address that is not a vector's, and exactly the memory that the contract gives.
  Buffer<float> from(scores.size(), 1), scratch(scores.size() + 16, 3);
  std::copy(scores.begin(), scores.end(), from.data());
  std::fill(scratch.memory.begin(), scratch.memory.end(), -1e30f);
  Buffer<int32_t> ids(static_cast<size_t>(m) + 16, 1);
  std::fill(ids.memory.begin(), ids.memory.end(), kUntouched);
  Selected s;
  const int kept = fn({.ids = ids.data(),
                       .threshold = &s.threshold,
                       .scores = from.data(),
                       .n = n,
                       .m = m,
                       .first_id = first_id,
                       .scratch = scratch.data()});
  REQUIRE(kept == std::min(m, n));
  s.ids.assign(ids.data(), ids.data() + kept);
  return s;
}

}  // namespace

TEST_SUITE("kernels/select_top") {
  TEST_CASE("every variant selects what a sort does") {
    for (const int n : {0, 1, 15, 16, 17, 1000, 98304})
      for (const char* kind : kKinds) {
        const Scores scores = make_scores(kind, n);
        std::vector<int32_t> order(scores.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
        });
        for (const int m : {0, 1, n / 50, n / 3, n - 1, n, n + 5}) {
          if (m < 0) continue;
          const auto kept = std::min(static_cast<size_t>(m), order.size());
          std::vector<int32_t> want(order.begin(), order.begin() + static_cast<int64_t>(kept));
          std::sort(want.begin(), want.end());
          for (int32_t& id : want) id += 1000;
          const float threshold = m >= n   ? -kInf
                                  : m == 0 ? kInf
                                           : scores[static_cast<size_t>(order[kept - 1])];
          for (const Isa isa : usable_isas()) {
            if (isa > Isa::avx512) continue;
            CAPTURE(isa_name(isa));
            CAPTURE(n);
            CAPTURE(kind);
            CAPTURE(m);
            const Selected got = select(select_variant(isa), scores, m, 1000);
            REQUIRE(got.threshold == threshold);
            REQUIRE(got.ids == want);
          }
        }
      }
  }

  TEST_CASE("the reference too") {
    for (const char* kind : kKinds) {
      const Scores scores = make_scores(kind, 1000);
      for (const int m : {0, 1, 20, 999, 1000, 1005}) {
        const Selected want = select(select_top_ref, scores, m, -3);
        const Selected got = select(select_top_scalar, scores, m, -3);
        REQUIRE(got.threshold == want.threshold);
        REQUIRE(got.ids == want.ids);
      }
    }
  }
}
