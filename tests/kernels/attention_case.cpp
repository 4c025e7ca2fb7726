#include "attention_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "base/convert.h"
#include "base/rng.h"
#include "kernels/cpu_table.h"

namespace tandem::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void put(std::vector<unsigned char>& bytes, DType dtype, size_t i, float x) {
  if (dtype == DType::f32)
    reinterpret_cast<float*>(bytes.data())[i] = x;
  else
    reinterpret_cast<bf16*>(bytes.data())[i] = to_bf16(x);
}

float uniform(PhiloxStream& rng, float scale) {
  return scale * static_cast<float>(2.0 * rng.uniform() - 1.0);
}

}  // namespace

std::string AttentionSpec::text() const {
  std::string s =
      fmt::format("d {} G {} Hkv {} window {} sinks {} keys [{}, {}) {} seed {} seqs", d, group,
                  kv_heads, window, sinks, key_lo, key_hi, tree ? "tree" : "chain", seed);
  for (const SeqShape& q : seqs) s += fmt::format(" {}+{}+{}", q.base, q.tentative, q.rows);
  return s;
}

AttentionCase::AttentionCase(const AttentionSpec& spec) : spec_(spec) {
  row_begin_ = {0};
  for (const SeqShape& s : spec.seqs) {
    base_.push_back(s.base);
    tentative_.push_back(s.tentative);
    row_begin_.push_back(row_begin_.back() + s.rows);
    max_pages_ = std::max(max_pages_, (s.keys() + kPageTokens - 1) / kPageTokens);
    mask_words_ = std::max(mask_words_, (s.tentative + s.rows + 63) / 64);
  }
  if (spec.tree) grow_trees();
  place_pages();
  fill_pools();
}

void AttentionCase::grow_trees() {
  PhiloxStream rng(spec_.seed, 3);
  const auto words = static_cast<size_t>(mask_words_);
  for (const SeqShape& shape : spec_.seqs) {
    const auto n = static_cast<size_t>(shape.tentative + shape.rows);
    std::vector<int32_t> pos(n, shape.base);
    std::vector<uint64_t> mask(n * words);
    for (size_t node = 0; node < n; ++node) {
      if (node > 0) {  // hangs under a random earlier node and sees what that one sees
        const size_t parent = rng.below(static_cast<uint32_t>(node));
        pos[node] = pos[parent] + 1;
        std::copy_n(&mask[parent * words], words, &mask[node * words]);
      }
      mask[node * words + node / 64] |= uint64_t{1} << (node % 64);
    }
    pos_.insert(pos_.end(), pos.begin() + shape.tentative, pos.end());
    mask_.insert(mask_.end(), mask.begin() + shape.tentative * mask_words_, mask.end());
  }
}

bool AttentionCase::seen_by_any(int seq, int key_slot) const {
  const auto s = static_cast<size_t>(seq);
  if (spec_.tree && key_slot >= base_[s]) return true;
  if (key_slot < spec_.key_lo || key_slot >= spec_.key_hi) return false;
  // The first row's position, or the key's own row; in a tree at least the text's end.
  const int oldest = std::max(base_[s] + (spec_.tree ? 0 : tentative_[s]), key_slot);
  return spec_.window == 0 || key_slot < spec_.sinks || oldest - key_slot < spec_.window;
}

void AttentionCase::place_pages() {
  n_pages_ = spec_.seqs.size() * static_cast<size_t>(max_pages_);
  std::vector<int32_t> order(n_pages_);
  std::iota(order.begin(), order.end(), 0);
  PhiloxStream rng(spec_.seed, 1);
  for (size_t i = n_pages_; i > 1; --i)
    std::swap(order[i - 1], order[rng.below(static_cast<uint32_t>(i))]);
  table_.assign(n_pages_, -1);
  for (int s = 0; s < static_cast<int>(spec_.seqs.size()); ++s) {
    const SeqShape& shape = spec_.seqs[static_cast<size_t>(s)];
    for (int page = 0; page * kPageTokens < shape.keys(); ++page) {
      bool kept = false;
      for (int t = page * kPageTokens; t < (page + 1) * kPageTokens; ++t)
        kept |= t < shape.keys() && seen_by_any(s, t);
      const auto at = static_cast<size_t>(s * max_pages_ + page);
      if (kept) table_[at] = order[at];
    }
  }
}

void AttentionCase::fill_pools() {
  const auto d = static_cast<size_t>(spec_.d), heads = static_cast<size_t>(spec_.kv_heads);
  const size_t values = n_pages_ * heads * kPageTokens * d;
  const size_t n_q = static_cast<size_t>(n_rows()) * row_values();
  k_.resize(values * dtype_bytes(spec_.dtype));
  v_.resize(k_.size());
  q_.resize(n_q * dtype_bytes(spec_.dtype));
  out_.resize(n_q * dtype_bytes(spec_.out_dtype));
  lse_.resize(n_q / d);
  for (size_t i = 0; i < values; ++i) {
    put(k_, spec_.dtype, i, kNaN);
    put(v_, spec_.dtype, i, kNaN);
  }
  // One stream a (sequence, slot): the same token has the same keys whatever the split into steps.
  for (int s = 0; s < static_cast<int>(spec_.seqs.size()); ++s) {
    const SeqShape& shape = spec_.seqs[static_cast<size_t>(s)];
    for (int t = 0; t < shape.keys(); ++t) {
      const int32_t page = table_[static_cast<size_t>(s * max_pages_ + t / kPageTokens)];
      if (page < 0) continue;
      const bool seen = seen_by_any(s, t);
      PhiloxStream rng(spec_.seed, static_cast<uint32_t>(1000 + s * 100000 + t));
      for (size_t h = 0; h < heads; ++h)
        for (size_t c = 0; c < d; ++c) {
          const size_t at = ((static_cast<size_t>(page) * heads + h) * kPageTokens +
                             static_cast<size_t>(t % kPageTokens)) *
                                d +
                            c;
          const float k = uniform(rng, 2.0f), v = uniform(rng, 1.0f);
          put(k_, spec_.dtype, at, seen ? k : 1000.0f);
          put(v_, spec_.dtype, at, seen ? v : 1000.0f);
        }
    }
    for (int i = 0; i < shape.rows; ++i) {
      PhiloxStream rng(
          spec_.seed, static_cast<uint32_t>(50000000 + s * 100000 + shape.keys() - shape.rows + i));
      const size_t row = static_cast<size_t>(row_begin_[static_cast<size_t>(s)] + i) * row_values();
      for (size_t c = 0; c < row_values(); ++c) put(q_, spec_.dtype, row + c, uniform(rng, 2.0f));
    }
  }
}

AttentionParams AttentionCase::params() {
  AttentionParams p{};
  p.out = out_.data();
  p.lse = lse_.data();
  p.q = q_.data();
  p.k_pool = k_.data();
  p.v_pool = v_.data();
  p.page_table = table_.data();
  p.row_begin = row_begin_.data();
  p.base = base_.data();
  if (std::any_of(tentative_.begin(), tentative_.end(), [](int32_t n) { return n > 0; }))
    p.tentative = tentative_.data();
  p.pos = spec_.tree ? pos_.data() : nullptr;
  p.tree_mask = spec_.tree ? mask_.data() : nullptr;
  p.dtype = spec_.dtype;
  p.out_dtype = spec_.out_dtype;
  p.n_seqs = static_cast<int>(spec_.seqs.size());
  p.max_pages = max_pages_;
  p.n_heads = spec_.group * spec_.kv_heads;
  p.n_kv_heads = spec_.kv_heads;
  p.head_dim = spec_.d;
  p.mask_words = mask_words_;
  p.key_lo = spec_.key_lo;
  p.key_hi = spec_.key_hi;
  p.sinks = spec_.sinks;
  p.window = spec_.window;
  p.scale = 1.0f / std::sqrt(static_cast<float>(spec_.d));
  return p;
}

void AttentionCase::run(const AttentionKernel& kernel, int threads) {
  std::fill(out_.begin(), out_.end(), static_cast<unsigned char>(0xff));  // NaN in either dtype
  std::fill(lse_.begin(), lse_.end(), kNaN);
  run_attention(kernel, params(), threads);
}

void AttentionCase::run_ref(Range rows) { attention_ref(params(), rows); }

float AttentionCase::out(size_t i) const {
  return spec_.out_dtype == DType::f32 ? reinterpret_cast<const float*>(out_.data())[i]
                                       : to_float(reinterpret_cast<const bf16*>(out_.data())[i]);
}

Tolerance tolerance(const AttentionSpec& s, int n_keys) {
  const double score = 8 * std::sqrt(static_cast<double>(s.d)),
               sum = std::sqrt(static_cast<double>(n_keys));
  const double f32 = 4 * 0x1p-24 * (score + sum);
  if (s.dtype == DType::f32) return {f32, f32};
  // bf16: p is rounded (2^-9) and 2^x is good to 7.6e-5 in numerator and denominator alike; out is
  // rounded once more (2^-9) unless it is f32.
  const double exp2 = 2 * 7.6e-5, p = 0x1p-9, out = s.out_dtype == DType::bf16 ? 0x1p-9 : 0.0;
  return {f32 + exp2 + p + out, f32 + exp2};
}

std::set<int> rows_to_check(const AttentionSpec& s) {
  std::set<int> rows;
  int first = 0;
  for (const SeqShape& q : s.seqs) {
    for (int i : {0, 1, q.rows / 3, q.rows / 2, q.rows - 2, q.rows - 1})
      if (i >= 0 && i < q.rows) rows.insert(first + i);
    first += q.rows;
  }
  return rows;
}

void add_tentative(AttentionSpec& s, const std::vector<int>& counts) {
  size_t n = 0;
  for (SeqShape& q : s.seqs)
    if (q.rows > 0) q.tentative = counts[n++ % counts.size()];
}

void apply_mask(AttentionSpec& s, int kind) {
  switch (kind) {
    case 1:
      s.window = 100, s.sinks = 4;
      break;
    case 2:
      s.tree = true;
      break;
    case 3:
      s.window = 65;
      break;
    case 4:
      s.key_lo = 40, s.key_hi = 700;
      break;
    case 5:
      s.tree = true, s.window = 30, s.sinks = 70;
      break;
    case 6:
      s.window = 1, s.sinks = 1;
      break;
    default:
      break;
  }
}

void run_attention(const AttentionKernel& kernel, const AttentionParams& p, int threads) {
  int tokens = 0;
  for (int s = 0; s < p.n_seqs; ++s)
    tokens = std::max(tokens, p.base[s] + (p.tentative == nullptr ? 0 : p.tentative[s]) +
                                  p.row_begin[s + 1] - p.row_begin[s]);
  const AttentionBounds bounds{.max_seqs = p.n_seqs,
                               .max_rows = p.row_begin[p.n_seqs],
                               .max_tokens = tokens,
                               .n_heads = p.n_heads,
                               .n_kv_heads = p.n_kv_heads,
                               .head_dim = p.head_dim,
                               .threads = threads};
  const size_t bytes = (attention_cpu_workspace_bytes(bounds) + 63) / 64 * 64;
  const std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(64, bytes),
                                                              std::free);
  attention_with(kernel, p, workspace.get(), threads);
}

std::vector<AttentionVariant> attention_variants(DType dtype) {
  std::vector<AttentionVariant> variants;
  for (int i = 0; i <= static_cast<int>(isa_detected()); ++i) {
    const auto isa = static_cast<Isa>(i);
    const CpuTable& t = cpu_table(isa);
    const AttentionKernel* kernel = dtype == DType::f32 ? t.attention_f32 : t.attention_bf16;
    if (variants.empty() || variants.back().kernel != kernel) variants.push_back({isa, kernel});
  }
  return variants;
}

}  // namespace tandem::test
