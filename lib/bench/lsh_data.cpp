#include "bench/lsh_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/parallel.h"
#include "base/rng.h"
#include "kernels/cpu_table.h"

namespace tandem::bench {
namespace {

enum Draw : uint32_t { kDirection, kKeys, kShares, kNoise, kProjections };

OwnedTensor normals(int64_t rows, int64_t cols, Draw draw) {
  OwnedTensor t(DType::f32, {rows, cols});
  parallel_for(static_cast<int>(rows), [&](int r) {
    PhiloxStream stream(draw, static_cast<uint32_t>(r));
    for (int64_t i = 0; i < cols; ++i) {
      const double u = stream.uniform(), angle = 2 * std::numbers::pi * stream.uniform();
      t.as<float>()[r * cols + i] =
          static_cast<float>(std::sqrt(-2 * std::log(1 - u)) * std::cos(angle));
    }
  });
  return t;
}

void normalize(float* x, int d) {
  double norm = 0;
  for (int i = 0; i < d; ++i) norm += double{x[i]} * x[i];
  for (int i = 0; i < d; ++i) x[i] /= static_cast<float>(std::sqrt(norm));
}

OwnedTensor direction(int d) {
  OwnedTensor e = normals(1, d, kDirection);
  normalize(e.as<float>(), d);
  return e;
}

/// Copies the first of n equal parts of a tensor to the others.
void repeat_first(const OwnedTensor& t, int n) {
  const size_t bytes = t.view().bytes() / static_cast<size_t>(n);
  auto* to = static_cast<char*>(t.raw());
  parallel_for(n - 1,
               [&](int i) { std::memcpy(to + static_cast<size_t>(i + 1) * bytes, to, bytes); });
}

}  // namespace

int LshShape::copies(int multiple_of) const {
  const size_t bytes_of_all = bytes() * static_cast<size_t>(multiple_of);
  return multiple_of * static_cast<int>(1 + (size_t{1} << 30) / bytes_of_all);
}

OwnedTensor lsh_keys(const LshShape& s) {
  OwnedTensor keys = normals(s.n, s.d, kKeys);
  const OwnedTensor t = normals(1, s.n, kShares), e = direction(s.d);
  for (int64_t j = 0; j < s.d; ++j) {
    float* column = keys.as<float>() + j;
    double mean = 0;
    for (int64_t i = 0; i < s.n; ++i) mean += column[i * s.d] += 2 * t.get(i) * e.get(j);
    for (int64_t i = 0; i < s.n; ++i) column[i * s.d] -= static_cast<float>(mean / s.n);
  }
  return keys;
}

OwnedTensor lsh_queries(const LshShape& s) {
  OwnedTensor queries = normals(kQueries, s.d, kNoise);
  const OwnedTensor e = direction(s.d);
  for (int64_t r = 0; r < kQueries; ++r) {
    float* q = queries.as<float>() + r * s.d;
    normalize(q, s.d);
    for (int j = 0; j < s.d; ++j) q[j] = e.get(j) + 0.5f * q[j];
  }
  return queries;
}

Projection::Projection(OwnedTensor rows)
    : x(std::move(rows)),
      w(normals(x.view().row_size(), 64 * kCodeWords, kProjections)),
      bits(DType::i64, {x.view().rows(), kCodeWords}) {}

SignProjectParams Projection::params() const {
  return {.bits = bits.as<uint64_t>(),
          .x = x.as<float>(),
          .w = w.as<float>(),
          .w_stride = 64 * kCodeWords,
          .d = static_cast<int>(x.view().row_size()),
          .n_bits = kCodeBits * kTables};
}

void Projection::run() const {
  parallel_ranges(static_cast<int>(x.view().rows()), 4, [&](int begin, int end) {
    cpu_table().sign_project(params(), {begin, end});
  });
}

OwnedTensor lsh_codes(const LshShape& s) {
  const Projection queries(lsh_queries(s));
  queries.run();
  OwnedTensor codes(DType::f16, {kQueries, kTables});
  for (int64_t q = 0; q < kQueries; ++q)
    hash_codes({.codes = codes.as<uint16_t>() + q * kTables,
                .code_stride = 1,
                .bits = queries.bits.as<uint64_t>() + q * kCodeWords,
                .words = kCodeWords,
                .code_bits = kCodeBits,
                .n_tokens = 1},
               {0, kTables});
  return codes;
}

// DType has no u16: tensors of half numbers hold the ids and codes.
LshTables::LshTables(const LshShape& s, int copies)
    : shape(s),
      codes(DType::f16, {kTables, s.n}),
      offsets(DType::f16, {copies, s.blocks(), s.offsets()}),
      ids(DType::f16, {copies, s.blocks(), s.ids()}),
      scratch(DType::i32, {s.blocks() * kParts, kBuckets + 1 + s.capacity()}) {}

HashBlock LshTables::block(int copy, int b, int n_tokens) const {
  const int64_t i = int64_t{copy} * shape.blocks() + b;
  return {.offsets = offsets.as<uint16_t>() + i * shape.offsets(),
          .ids = ids.as<uint16_t>() + i * shape.ids(),
          .capacity = shape.capacity(),
          .n_tokens = n_tokens};
}

void LshTables::each_part(const OwnedTensor* bits, int copy) const {
  parallel_for(shape.blocks() * kParts, [&](int i) {
    const int b = i / kParts, part = i % kParts, first = b * shape.capacity();
    const Range tables{kTables * part / kParts, kTables * (part + 1) / kParts};
    uint16_t* const to = codes.as<uint16_t>() + first;
    if (bits)
      hash_codes({.codes = to,
                  .code_stride = shape.n,
                  .bits = bits->as<uint64_t>() + int64_t{first} * kCodeWords,
                  .words = kCodeWords,
                  .code_bits = kCodeBits,
                  .n_tokens = shape.tokens(b)},
                 tables);
    if (copy >= 0)
      hash_append({.block = block(copy, b, 0),
                   .codes = to,
                   .code_stride = shape.n,
                   .code_bits = kCodeBits,
                   .n_new = shape.tokens(b),
                   .scratch = scratch.as<uint32_t>() + i * scratch.view().row_size()},
                  tables);
  });
}

void LshTables::replicate() const {
  const auto copies = static_cast<int>(offsets.view().rows());
  repeat_first(offsets, copies);
  repeat_first(ids, copies);
}

}  // namespace tandem::bench
