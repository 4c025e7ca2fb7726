#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Slot of a sequence's row 0.
int first_slot(const AttentionParams& p, int s) {
  return p.base[s] + (p.tentative == nullptr ? 0 : p.tentative[s]);
}

/// The visibility rule of AttentionParams for one row and one slot, word for word.
bool visible(const AttentionParams& p, int s, int i, int key_slot) {
  const int row = p.row_begin[s] + i, base = p.base[s];
  int x = first_slot(p, s) + i, y = key_slot;
  if (p.tree_mask != nullptr) {
    x = p.pos[row];
    if (key_slot >= base) {
      const uint64_t* mask = p.tree_mask + static_cast<size_t>(row) * p.mask_words;
      const auto bit = [&](int j) { return static_cast<int>((mask[j / 64] >> (j % 64)) & 1); };
      if (bit(key_slot - base) == 0) return false;
      y = base;
      for (int j = 0; j < key_slot - base; ++j) y += bit(j);
    }
  } else if (key_slot > x) {
    return false;
  }
  if (p.seq_key_lo != nullptr && y < p.seq_key_lo[s]) return false;
  if (p.lists.rest != nullptr && y < p.lists.rest[table_row(p, s)]) return false;
  return p.key_lo <= y && y < p.key_hi && (p.window == 0 || y < p.sinks || x - y < p.window);
}

/// Element of the pools where the key of a slot begins.
size_t key_at(const AttentionParams& p, int s, int kv_head, int key_slot) {
  return ((static_cast<size_t>(pages_of(p, s)[key_slot / kPageTokens]) * p.n_kv_heads + kv_head) *
              kPageTokens +
          static_cast<size_t>(key_slot % kPageTokens)) *
         p.head_dim;
}

/// scale q.k of a row, a head and a slot.
double score_of(const AttentionParams& p, int s, int i, int head, int key_slot) {
  const auto d = static_cast<size_t>(p.head_dim);
  const size_t q = (static_cast<size_t>(p.row_begin[s] + i) * p.n_heads + head) * d,
               k = key_at(p, s, head / (p.n_heads / p.n_kv_heads), key_slot);
  double dot = 0;
  for (size_t c = 0; c < d; ++c)
    dot += element(p.q, p.dtype, q + c) * element(p.k_pool, p.dtype, k + c);
  return dot * p.scale;
}

void attend(const AttentionParams& p, int s, int i, int head, std::vector<double>& o) {
  const auto d = static_cast<size_t>(p.head_dim);
  const int kv_head = head / (p.n_heads / p.n_kv_heads);
  const int row = p.row_begin[s] + i;
  const int n_slots = first_slot(p, s) + p.row_begin[s + 1] - p.row_begin[s];
  const size_t at = static_cast<size_t>(row) * p.n_heads + head;

  std::vector<bool> listed(n_slots);
  if (p.lists.ids != nullptr)
    for (int t = 0; t < listed_tokens(p.lists, table_row(p, s), kv_head); ++t)
      listed[listed_token(p.lists, list_of(p.lists, table_row(p, s), kv_head), t)] = true;
  std::vector<double> score(n_slots, -kInf);
  double m = -kInf, l = 0;
  for (int t = 0; t < n_slots; ++t) {
    if (!listed[t] && !visible(p, s, i, t)) continue;
    score[t] = score_of(p, s, i, head, t);
    m = std::max(m, score[t]);
  }
  o.assign(d, 0.0);
  for (int t = 0; t < n_slots; ++t) {
    if (score[t] == -kInf) continue;
    const double w = std::exp(score[t] - m);
    l += w;
    for (size_t c = 0; c < d; ++c)
      o[c] += w * element(p.v_pool, p.dtype, key_at(p, s, kv_head, t) + c);
  }
  for (size_t c = 0; c < d; ++c) put(p.out, p.out_dtype, at * d + c, l > 0 ? o[c] / l : 0.0);
  if (p.lse != nullptr) p.lse[at] = static_cast<float>(l > 0 ? m + std::log(l) : -kInf);
}

}  // namespace

void attention_ref(const AttentionParams& p, Range rows) {
  std::vector<double> o;
  for (int s = 0; s < p.n_seqs; ++s)
    for (int row = p.row_begin[s]; row < p.row_begin[s + 1]; ++row)
      if (row >= rows.begin && row < rows.end)
        for (int head = 0; head < p.n_heads; ++head) attend(p, s, row - p.row_begin[s], head, o);
}

void key_scores_ref(const AttentionParams& p, int s) {
  const int group = p.n_heads / p.n_kv_heads, row = table_row(p, s);
  for (int head = 0; head < p.n_heads; head += group)
    for (int t = 0; t < p.base[s]; ++t) {
      double most = -kInf;
      for (int h = head; h < head + group; ++h)
        for (int i = 0; i < p.row_begin[s + 1] - p.row_begin[s]; ++i)
          most =
              std::max(most, score_of(p, s, i, h, t) - p.scores.lse[row * p.scores.lse_stride + h]);
      scores_of(p.scores, row, head / group)[t] = to_f16(static_cast<float>(most));
    }
}

}  // namespace tandem
