#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/cpu_table.h"
#include "kernels/magicpig_data.h"
#include "kv/log_u.h"

/// One head of MagicPIG put together from the kernels, with projections that the test gives: for
/// golden vectors and statistics over many draws.
namespace tandem::test {

/// Partial attention: o and its natural log-sum-exp.
struct HeadState {
  std::vector<float> o;
  double lse = 0;
};

struct LshShape {
  int bits, tables, min_hits = 2;
};

inline std::vector<float> to_float_vector(const Doubles& x) { return {x.begin(), x.end()}; }

/// Keys and values in pages of one KV head.
template <class T = float>
class HeadPages {
 public:
  HeadPages(const Doubles& k, const Doubles& v, size_t n, size_t d)
      : d_(d), k_((n + 63) / 64 * 64 * d), v_(k_.size()) {
    for (size_t i = 0; i < n * d; ++i) {
      put(k_[i], k[i]);
      put(v_[i], v[i]);
    }
    for (size_t page = 0; page * 64 < n; ++page) pages_.push_back(static_cast<int32_t>(page));
  }

  HeadState attend(Isa isa, const std::vector<T>& q, std::span<const KeySegment> segments,
                   std::span<const float> log_u = {}, double q_norm = 0,
                   double q_center = 0) const {
    HeadState s{std::vector<float>(d_, NAN), NAN};
    float lse = NAN;
    cpu_table(isa).attend_list({.o = s.o.data(),
                                .lse = &lse,
                                .q = q.data(),
                                .k_pool = k_.data(),
                                .v_pool = v_.data(),
                                .pages = pages_.data(),
                                .segments = segments.data(),
                                .n_segments = static_cast<int>(segments.size()),
                                .n_kv_heads = 1,
                                .kv_head = 0,
                                .d = static_cast<int>(d_),
                                .dtype = sizeof(T) == 4 ? DType::f32 : DType::bf16,
                                .scale = static_cast<float>(1 / std::sqrt(double(d_))),
                                .log_u = log_u.data(),
                                .log_u_intervals = static_cast<int>(log_u.size()) - 1,
                                .q_norm = static_cast<float>(q_norm),
                                .q_center = static_cast<float>(q_center)});
    s.lse = lse;
    return s;
  }

 private:
  static void put(float& to, double x) { to = static_cast<float>(x); }
  static void put(bf16& to, double x) { to = to_bf16(static_cast<float>(x)); }

  size_t d_;
  std::vector<T> k_, v_;
  std::vector<int32_t> pages_;
};

/// Hash tables over keys [begin, end) minus their center.
class LshHead {
 public:
  LshHead(const Doubles& k, size_t d, size_t begin, size_t end, const Doubles& center,
          const Doubles& w, LshShape shape, Isa isa)
      : shape_(shape),
        d_(d),
        begin_(begin),
        n_(end - begin),
        isa_(isa),
        stride_((columns() + 63) / 64 * 64),
        w_(d * stride_),
        norms_(end) {
    for (size_t c = 0; c < d; ++c)
      for (size_t j = 0; j < columns(); ++j)
        w_[c * stride_ + j] = static_cast<float>(w[c * columns() + j]);
    std::vector<float> rows(n_ * d);
    for (size_t i = 0; i < n_; ++i) {
      double square = 0;
      for (size_t c = 0; c < d; ++c) {
        const double x = k[(begin + i) * d + c] - center[c];
        rows[i * d + c] = static_cast<float>(x);
        square += x * x;
      }
      norms_[begin + i] = static_cast<float>(std::sqrt(square));
    }
    const std::vector<uint16_t> codes = codes_of(rows, n_);
    offsets_.resize(n_tables() * (buckets() + 1));
    ids_.resize(n_tables() * n_);
    std::vector<uint32_t> scratch(buckets() + 1 + n_);
    HashBlock empty = block();
    empty.n_tokens = 0;
    hash_append({.block = empty,
                 .codes = codes.data(),
                 .code_stride = static_cast<int64_t>(n_),
                 .code_bits = shape.bits,
                 .n_new = static_cast<int>(n_),
                 .scratch = scratch.data()},
                {0, shape.tables});
  }

  /// Tokens of S for a query, ascending.
  std::vector<int32_t> sample(const std::vector<float>& q) const {
    const std::vector<uint16_t> codes = codes_of(q, 1);
    // The counters must lie at a multiple of 64 bytes.
    std::vector<uint8_t> memory((n_ + 63) / 64 * 64 + 64);
    uint8_t* counters = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    std::vector<int32_t> found(n_ + 16);
    const int n = cpu_table(isa_).hash_probe({.block = block(),
                                              .codes = codes.data(),
                                              .tables = shape_.tables,
                                              .code_bits = shape_.bits,
                                              .min_hits = shape_.min_hits,
                                              .first_id = static_cast<int>(begin_),
                                              .counters = counters,
                                              .ids = found.data()});
    found.resize(static_cast<size_t>(n));
    return found;
  }
  const float* norms() const { return norms_.data(); }

 private:
  size_t n_tables() const { return static_cast<size_t>(shape_.tables); }
  size_t columns() const { return n_tables() * static_cast<size_t>(shape_.bits); }
  size_t buckets() const { return size_t{1} << shape_.bits; }
  HashBlock block() const {
    return {const_cast<uint16_t*>(offsets_.data()), const_cast<uint16_t*>(ids_.data()),
            static_cast<int>(n_), static_cast<int>(n_)};
  }
  std::vector<uint16_t> codes_of(const std::vector<float>& rows, size_t n) const {
    const size_t words = (columns() + 63) / 64;
    std::vector<uint64_t> bits(n * words);
    cpu_table(isa_).sign_project({.bits = bits.data(),
                                  .x = rows.data(),
                                  .w = w_.data(),
                                  .w_stride = static_cast<int64_t>(stride_),
                                  .d = static_cast<int>(d_),
                                  .n_bits = static_cast<int>(columns())},
                                 {0, static_cast<int>(n)});
    std::vector<uint16_t> codes(n_tables() * n);
    hash_codes({.codes = codes.data(),
                .code_stride = static_cast<int64_t>(n),
                .bits = bits.data(),
                .words = static_cast<int64_t>(words),
                .code_bits = shape_.bits,
                .n_tokens = static_cast<int>(n)},
               {0, shape_.tables});
    return codes;
  }

  LshShape shape_;
  size_t d_, begin_, n_;
  Isa isa_;
  size_t stride_;
  std::vector<float> w_, norms_;
  std::vector<uint16_t> offsets_, ids_;
};

/// Attention in double over the listed keys, scores relative to `center`.
struct ExactState {
  Doubles o;
  double lse;
};
inline ExactState exact_attention(const MagicPigData& data, std::span<const int32_t> ids,
                                  const Doubles& center) {
  Doubles scores;
  for (const int32_t id : ids) {
    const double* k = data.k.data() + static_cast<size_t>(id) * data.d;
    scores.push_back((dot(data.q.data(), k, data.d) - dot(data.q.data(), center.data(), data.d)) /
                     std::sqrt(double(data.d)));
  }
  const double top = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
  ExactState s{Doubles(data.d, 0.0), 0};
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double weight = std::exp(scores[i] - top);
    sum += weight;
    for (size_t c = 0; c < data.d; ++c)
      s.o[c] += weight * data.v[static_cast<size_t>(ids[i]) * data.d + c];
  }
  for (double& x : s.o) x /= sum;
  s.lse = top + std::log(sum);
  return s;
}

inline HeadState merge(const HeadState& a, const HeadState& b) {
  HeadState out{std::vector<float>(a.o.size()), 0};
  const float part_lse[] = {static_cast<float>(a.lse), static_cast<float>(b.lse)};
  const void* o[] = {a.o.data(), b.o.data()};
  const float* lse[] = {part_lse, part_lse + 1};
  float merged = 0;
  merge_states(
      {out.o.data(), &merged, o, lse, DType::f32, DType::f32, 2, 1, static_cast<int>(a.o.size())},
      {0, 1});
  out.lse = merged;
  return out;
}

inline double relative_error(const std::vector<float>& got, const Doubles& want) {
  double error = 0, norm = 0;
  for (size_t c = 0; c < want.size(); ++c) {
    error += (got[c] - want[c]) * (got[c] - want[c]);
    norm += want[c] * want[c];
  }
  return std::sqrt(error / norm);
}

}  // namespace tandem::test
