// magicpig-loops CONTEXT HEADS KV_HEADS HEAD_DIM: the two hot loops of MagicPIG's reference program
// (probing its hash tables, attention over the sampled keys), rewritten from a description, and
// tandem's kernels by turns on the same data. Prints a JSON line for each; MagicPIG's loop of
// attention needs AVX512-BF16.
//
//   ninja -C build magicpig-loops && build/magicpig-loops 98304 32 8 128
#include <immintrin.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/log2.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "bench/harness.h"
#include "bench/lsh_data.h"
#include "io/json.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu_table.h"
#include "kv/log_u.h"

namespace {

using namespace tandem;
using namespace tandem::bench;

struct Shape {
  int context, heads, kv_heads, head_dim;
};

/// Times both by turns and prints a line. ratio > 1: tandem is faster.
void print(const char* loop, const Shape& s, const Body& own, const Body& magicpig) {
  const Comparison c = compare(magicpig, own);
  fmt::print("{}\n", io::Json{{"loop", loop},
                              {"context", s.context},
                              {"heads", s.heads},
                              {"kv_heads", s.kv_heads},
                              {"head_dim", s.head_dim},
                              {"threads", max_threads()},
                              {"isa", isa_name(isa_in_use())},
                              {"tandem_ms", median(c.b.ms)},
                              {"magicpig_ms", median(c.a.ms)},
                              {"ratio", c.ratio},
                              {"ci95", {c.ci95.low, c.ci95.high}},
                              {"pairs", c.pairs()}}
                         .dump());
}

[[noreturn]] void differs(const char* loop) {
  fmt::print(stderr, "magicpig-loops: {} gives other results than tandem's kernel\n", loop);
  std::exit(1);
}

/// Tables over the tokens of one KV head, with 32-bit ids. An empty bucket has start = end = 0.
struct Tables {
  int n;
  std::vector<int32_t> start, end, ids;  // [kTables, kBuckets] twice, [kTables, n]

  /// Ids ascend in a bucket. The original sorts unstably and so does not promise that; it favours
  /// the original.
  Tables(const uint16_t* codes, int tokens)
      : n(tokens), start(size_t{kTables} * kBuckets), end(start), ids(size_t{kTables} * size_t(n)) {
    parallel_for(kTables, [&](int t) {
      const uint16_t* code = codes + int64_t{t} * n;
      std::vector<int32_t> next(kBuckets + 1);
      for (int i = 0; i < n; ++i) ++next[code[i] + 1u];
      std::partial_sum(next.begin(), next.end(), next.begin());
      for (int c = 0; c < kBuckets; ++c)
        if (next[c + 1u] > next[c]) {
          start[t * kBuckets + c] = next[c];
          end[t * kBuckets + c] = next[c + 1u];
        }
      for (int i = 0; i < n; ++i) ids[int64_t{t} * n + next[code[i]]++] = i;
    });
  }

  /// Tokens in the query's bucket of two tables or more, in the order of their second hit. Returns
  /// how many.
  int probe(const uint16_t* codes, uint8_t* marks, int32_t* found) const {
    std::memset(marks, 0, static_cast<size_t>(n));
    int n_found = 0;
    for (int t = 0; t < kTables; ++t) {
      const int bucket = t * kBuckets + codes[t];
      const int32_t* table = ids.data() + int64_t{t} * n;
      const int32_t last = end[bucket];
      for (int32_t i = start[bucket]; i < last; ++i) {
        const int32_t id = table[i];
        if (marks[id] == 0) {
          marks[id] = 1;
        } else if (marks[id] == 1) {
          marks[id] = 2;
          found[n_found++] = id;
        }
      }
    }
    return n_found;
  }
};

/// Every query head in the tables of its KV head. Each run takes the next layer's tables and other
/// queries; the layers exceed the caches.
void compare_probes(const Shape& shape) {
  const LshShape s{.n = shape.context, .d = shape.head_dim};
  const int copies = s.copies(shape.kv_heads), group = shape.heads / shape.kv_heads;
  const Projection keys(lsh_keys(s));
  keys.run();
  LshTables own(s, copies);
  own.build(0, &keys.bits);
  own.replicate();
  const std::vector<Tables> theirs(static_cast<size_t>(copies), {own.codes.as<uint16_t>(), s.n});
  const OwnedTensor codes = lsh_codes(s);
  const OwnedTensor scratch(DType::u8, {shape.heads, s.n + 64}), ids(DType::i32, {2, shape.heads, s.n + 16});
  std::vector<int> n_ids(2u * shape.heads);
  // out: 0 tandem's, 1 MagicPIG's.
  const auto each_head = [&](int out, int turn, const auto& probe) {
    parallel_for(shape.heads, [&](int h) {
      const int copy = turn * shape.kv_heads % copies + h / group, row = out * shape.heads + h;
      n_ids[row] = probe(copy, codes.as<uint16_t>() + (turn * shape.heads + h) % kQueries * kTables,
                         scratch.as<uint8_t>() + h * scratch.view().row_size() / 64 * 64,
                         ids.as<int32_t>() + row * int64_t{s.n + 16});
    });
  };
  int turns[2] = {};
  const auto run_own = [&] {
    each_head(0, turns[0]++, [&](int copy, const uint16_t* code, uint8_t* counters, int32_t* out) {
      int n = 0;
      for (int b = 0; b < s.blocks(); ++b)
        n += cpu_table().hash_probe({.block = own.block(copy, b, s.tokens(b)),
                                     .codes = code,
                                     .tables = kTables,
                                     .code_bits = kCodeBits,
                                     .min_hits = kMinHits,
                                     .first_id = b * s.capacity(),
                                     .counters = counters,
                                     .ids = out + n});
      return n;
    });
  };
  const auto run_theirs = [&] {
    each_head(1, turns[1]++, [&](int copy, const uint16_t* code, uint8_t* marks, int32_t* out) {
      return theirs[copy].probe(code, marks, out);
    });
  };
  run_own();
  run_theirs();
  for (int h = 0; h < shape.heads; ++h) {
    const int32_t* got = ids.as<int32_t>() + h * int64_t{s.n + 16};
    int32_t* other = ids.as<int32_t>() + (shape.heads + h) * int64_t{s.n + 16};
    std::sort(other, other + n_ids[shape.heads + h]);
    if (!std::equal(got, got + n_ids[h], other, other + n_ids[shape.heads + h])) differs("probe");
  }
  print("probe", shape, run_own, run_theirs);
}

#ifdef __AVX512BF16__
constexpr int kTile = 16;  // keys; lists are readable in whole tiles

struct Attention {
  const bf16 *q, *k, *v;  // [d], [n, d] centred keys, [n, d]
  const float* norms;     // [n] |k|
  const int32_t* ids;     // [n_ids]
  int n_ids, d;
  float q_norm;
  float* scores;  // scratch [n_ids rounded up to kTile]
  bf16* o;        // [d] out

  /// Every 32 elements of every key end in a sum over lanes and an addition in memory.
  void query_key() const {
    for (int tile = 0; tile < n_ids; tile += kTile) {
      std::fill_n(scores + tile, kTile, 0.0f);
      for (int c = 0; c < d; c += 32) {
        const auto part = reinterpret_cast<__m512bh>(_mm512_loadu_si512(q + c));
        for (int i = 0; i < kTile; ++i) {
          const bf16* key = k + int64_t{ids[tile + i]} * d + c;
          scores[tile + i] += _mm512_reduce_add_ps(_mm512_dpbf16_ps(
              _mm512_setzero_ps(), part, reinterpret_cast<__m512bh>(_mm512_loadu_si512(key))));
        }
      }
    }
  }

  /// Importance weights, key by key through the C library.
  void transform() const {
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    for (int i = 0; i < n_ids; ++i) {
      const float dot = scores[i];
      const float angle = acosf(dot / (q_norm * norms[ids[i]]));
      const float agree = powf(1.0f - angle / static_cast<float>(M_PI), kCodeBits);
      const float differ = 1.0f - agree;
      const float u = 1.0f - powf(differ, kTables - 1.0f) * (kTables * agree + differ);
      scores[i] = dot * scale - logf(u + 1e-4f);
    }
  }

  /// 2^x for x <= 0 by a Taylor series of third degree in the fraction, without a clamp.
  static __m512 exp2_taylor(__m512 x) {
    const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_mul_ps(_mm512_sub_ps(x, whole), _mm512_set1_ps(kLn2));
    __m512 y = _mm512_set1_ps(1.0f / 6);
    for (const float next : {0.5f, 1.0f, 1.0f}) y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(next));
    const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(whole), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent));
  }

  void softmax() const {
    float most = scores[0];
    for (int i = 1; i < n_ids; ++i)
      if (most < scores[i]) most = scores[i];
    float sum = 0;
    int i = 0;
    for (; i + kTile <= n_ids; i += kTile) {
      const __m512 x = _mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(most));
      const __m512 weight = exp2_taylor(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)));
      _mm512_storeu_ps(scores + i, weight);
      sum += _mm512_reduce_add_ps(weight);
    }
    for (; i < n_ids; ++i) sum += scores[i] = expf(scores[i] - most);
    for (i = 0; i < n_ids; ++i) scores[i] /= sum;
  }

  /// Blocks of 16 elements outside, all rows inside: each row is visited d / 16 times.
  void weighted_values() const {
    for (int c = 0; c < d; c += 16) {
      __m512 sum = _mm512_setzero_ps();
      for (int i = 0; i < n_ids; ++i) {
        const auto* row = reinterpret_cast<const __m256i*>(v + int64_t{ids[i]} * d + c);
        const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(row)), 16);
        sum = _mm512_fmadd_ps(_mm512_set1_ps(scores[i]), _mm512_castsi512_ps(wide), sum);
      }
      // Rounds half up.
      const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_set1_epi32(0x8000));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(o + c),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
    }
  }

  void run() const {
    query_key();
    transform();
    softmax();
    weighted_values();
  }
};

/// Every query head over 2 % of its KV head's keys, as MagicPIG has it for these tables. Runs take
/// turns on layers that exceed the caches, and on lists.
void compare_attention(const Shape& s) {
  constexpr int kLists = 61, kIntervals = 1024;
  constexpr double kShare = 0.02, kPoolBytes = 1 << 30;
  const int n = s.context, d = s.head_dim, group = s.heads / s.kv_heads;
  const int pages = (n + kPageTokens - 1) / kPageTokens, rows = pages * kPageTokens;
  const int layers = 1 + static_cast<int>(kPoolBytes / (2.0 * rows * d * s.kv_heads));
  // tandem's pages of one KV head, in order, are MagicPIG's flat rows.
  const OwnedTensor k = OwnedTensor::random(DType::bf16, {layers * s.kv_heads, rows, d}, 1);
  const OwnedTensor v = OwnedTensor::random(DType::bf16, {layers * s.kv_heads, rows, d}, 2);
  const OwnedTensor q = OwnedTensor::random(DType::bf16, {d}, 0, 4);  // weighs few keys
  const OwnedTensor norms(DType::f32, {n});
  std::fill_n(norms.as<float>(), n, 1.05f * std::sqrt(static_cast<float>(d)));
  const std::vector<float> log_u = kv::log_u_table(kCodeBits, kTables, kMinHits, 1e-4, kIntervals);
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int32_t>> lists(kLists);
  PhiloxStream stream(11);
  for (auto& list : lists) {
    for (int i = 0; i < n; ++i)
      if (stream.uniform() < kShare) list.push_back(i);
    list.resize(list.size() + kTile);
  }
  double square = 0;
  for (int c = 0; c < d; ++c) square += std::pow(q.get(c), 2);
  const auto q_norm = static_cast<float>(std::sqrt(square));
  const OwnedTensor scores(DType::f32, {s.heads, n + kTile}), o(DType::f32, {s.heads, d});
  const OwnedTensor their_o(DType::bf16, {s.heads, d});
  const auto list_of = [&](int turn, int h) -> auto& { return lists[size_t(turn * s.heads + h) % kLists]; };
  const auto pool_of = [&](int turn, int h) { return turn % layers * s.kv_heads + h / group; };
  int turns[2] = {};
  const auto run_own = [&] {
    const int turn = turns[0]++;
    parallel_for(s.heads, [&](int h) {
      const auto& list = list_of(turn, h);
      const int64_t pool = int64_t{pool_of(turn, h)} * rows * d;
      const KeySegment segment{.ids = list.data(),
                               .n = static_cast<int>(list.size()) - kTile,
                               .bias = nullptr,
                               .norms = norms.as<float>()};
      float lse = 0;
      cpu_table().attend_list({.o = o.as<float>() + int64_t{h} * d,
                               .lse = &lse,
                               .q = q.raw(),
                               .k_pool = k.as<bf16>() + pool,
                               .v_pool = v.as<bf16>() + pool,
                               .pages = order.data(),
                               .segments = &segment,
                               .n_segments = 1,
                               .n_kv_heads = 1,
                               .kv_head = 0,
                               .d = d,
                               .dtype = DType::bf16,
                               .scale = 1 / std::sqrt(static_cast<float>(d)),
                               .log_u = log_u.data(),
                               .log_u_intervals = kIntervals,
                               .q_norm = q_norm,
                               .q_center = 0});
    });
  };
  const auto run_theirs = [&] {
    const int turn = turns[1]++;
    parallel_for(s.heads, [&](int h) {
      const auto& list = list_of(turn, h);
      const int64_t pool = int64_t{pool_of(turn, h)} * rows * d;
      Attention{.q = q.as<bf16>(),
                .k = k.as<bf16>() + pool,
                .v = v.as<bf16>() + pool,
                .norms = norms.as<float>(),
                .ids = list.data(),
                .n_ids = static_cast<int>(list.size()) - kTile,
                .d = d,
                .q_norm = q_norm,
                .scores = scores.as<float>() + h * int64_t{n + kTile},
                .o = their_o.as<bf16>() + int64_t{h} * d}
          .run();
    });
  };
  run_own();
  run_theirs();
  // Its exponential is off by up to 5 %; values are within sqrt(3).
  if (!find_mismatch(their_o, o, 0, 0.05 * std::sqrt(3.0)).empty()) differs("attention");
  print("attention", s, run_own, run_theirs);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  Shape s{};
  int* const numbers[] = {&s.context, &s.heads, &s.kv_heads, &s.head_dim};
  bool good = argc == 5;
  for (int i = 1; good && i < argc; ++i) {
    const char* end = argv[i] + std::strlen(argv[i]);
    const auto [rest, error] = std::from_chars(argv[i], end, *numbers[i - 1]);
    good = error == std::errc{} && rest == end && *numbers[i - 1] > 0;
  }
  if (!good || s.heads % s.kv_heads != 0 || s.head_dim % 32 != 0) {
    fmt::print(stderr, "usage: magicpig-loops CONTEXT HEADS KV_HEADS HEAD_DIM\n"
                       "HEADS is a multiple of KV_HEADS, HEAD_DIM of 32\n");
    return 2;
  }
  compare_probes(s);
#ifdef __AVX512BF16__
  compare_attention(s);
#else
  fmt::print(stderr, "magicpig-loops: attention needs a processor with AVX512-BF16\n");
#endif
}
