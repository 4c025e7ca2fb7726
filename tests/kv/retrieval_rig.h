#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "policy_rig.h"

/// Retrieval caches in a rig, and what they should choose, worked out plainly.
namespace tandem::test::retrieval_rig {

inline const TokenData kCone = cone_data(32);

inline PolicyRig::Shape shape_of(int group) {
  PolicyRig::Shape shape;
  shape.geometry.n_heads = 2 * group;
  return shape;
}

/// Chosen tokens of a KV head, in the order of their chunks' scores; those of all its query heads,
/// which must be the same.
inline Ids chosen(PolicyRig& rig, int slot, int layer, int kv_head, int group = 3) {
  const Row q(static_cast<size_t>(group * 32), 1.0f);
  const PolicyRig::Selection s = rig.select(slot, rig.cache.length(slot), layer, kv_head, q);
  CHECK(s.inside);
  Ids ids;
  for (const kv::KeyList& list : s.lists) {
    Ids of_head;
    for (const KeySegment& segment : list.segments)
      of_head.insert(of_head.end(), segment.ids, segment.ids + segment.n);
    if (&list != &s.lists.front()) REQUIRE(of_head == ids);
    ids = of_head;
  }
  return ids;
}
inline std::vector<Ids> all_chosen(PolicyRig& rig, int slot, int group = 3) {
  std::vector<Ids> lists;
  for (int layer = 0; layer < 2; ++layer)
    for (int head = 0; head < 2; ++head) lists.push_back(chosen(rig, slot, layer, head, group));
  return lists;
}

/// Scores of the chunks of a text whose last queries choose, in double precision.
inline std::vector<double> naive_scores(const recipe::Cache& c, const TokenData& data,
                                        const Ids& text, int layer, int kv_head, int group,
                                        int d = 32) {
  const recipe::Retrieval& r = c.retrieval;
  const int n = static_cast<int>(text.size());
  const int tail = (n - static_cast<int>(r.force_recent)) / r.chunk * r.chunk;
  const auto width = static_cast<size_t>(d);
  Row x(width);
  std::vector<std::vector<double>> q(static_cast<size_t>(group), std::vector<double>(width));
  for (int h = 0; h < group; ++h)
    for (int t = std::max(0, n - r.n_queries()); t < n; ++t) {
      data(Part::q, text[static_cast<size_t>(t)], layer, kv_head * group + h, x.data());
      for (size_t i = 0; i < width; ++i) q[static_cast<size_t>(h)][i] += x[i];
    }
  std::vector<double> scores;
  for (int begin = 0; begin < tail; begin += r.chunk) {
    std::vector<double> mean(width);
    for (int t = begin; t < begin + r.chunk; ++t) {
      data(Part::k, text[static_cast<size_t>(t)], layer, kv_head, x.data());
      for (size_t i = 0; i < width; ++i) mean[i] += x[i] / double{static_cast<double>(r.chunk)};
    }
    double sum = 0, most = -1e300;
    for (int h = 0; h < group; ++h) {
      double dot = 0;
      for (size_t i = 0; i < width; ++i) dot += q[static_cast<size_t>(h)][i] * mean[i];
      sum += dot;
      most = std::max(most, dot);
    }
    scores.push_back(r.group == recipe::ScoreGroup::sum ? sum : most);
  }
  return scores;
}

/// Whether a list is what the scores choose for a text of n tokens, best first, but for scores that
/// are equal up to rounding.
inline void check_choice(const Ids& list, const std::vector<double>& scores, const recipe::Cache& c,
                         int n, double rounding = 1e-4) {
  const int chunk = c.retrieval.chunk, tail = static_cast<int>(scores.size()) * chunk;
  const auto n_chosen = static_cast<size_t>(
      std::min((static_cast<int>(c.retrieval.budget) - (n - tail)) / chunk, tail / chunk));
  REQUIRE(list.size() == n_chosen * static_cast<size_t>(chunk));
  std::vector<size_t> chunks;
  for (size_t i = 0; i < list.size(); ++i) {
    const size_t in_chunk = i % static_cast<size_t>(chunk);
    if (in_chunk == 0) chunks.push_back(static_cast<size_t>(list[i] / chunk));
    REQUIRE(list[i] == static_cast<int>(chunks.back()) * chunk + static_cast<int>(in_chunk));
    REQUIRE(list[i] < tail);
  }
  REQUIRE(chunks[0] == 0);
  double largest = 0, most_left = -1e300;
  for (const double score : scores) largest = std::max(largest, std::abs(score));
  std::vector<uint8_t> taken(scores.size());
  for (const size_t i : chunks) {
    REQUIRE(taken[i] == 0);
    taken[i] = 1;
  }
  for (size_t i = 0; i < scores.size(); ++i)
    if (taken[i] == 0) most_left = std::max(most_left, scores[i]);
  for (size_t i = 1; i < chunks.size(); ++i) {
    const double next = i + 1 < chunks.size() ? scores[chunks[i + 1]] : most_left;
    CHECK(scores[chunks[i]] >= next - rounding * largest);
  }
}

/// Attention of a token's query to the keys of some tokens, in double precision.
inline std::vector<double> naive_attention(const TokenData& data, int32_t token, const Ids& keys,
                                           int layer, int head, int kv_head, int d = 32) {
  const auto width = static_cast<size_t>(d);
  Row q(width), k(width), v(width);
  std::vector<double> out(width);
  double sum = 0;
  data(Part::q, token, layer, head, q.data());
  for (const int32_t key : keys) {
    data(Part::k, key, layer, kv_head, k.data());
    data(Part::v, key, layer, kv_head, v.data());
    double dot = 0;
    for (size_t c = 0; c < width; ++c) dot += double{q[c]} * k[c];
    const double weight = std::exp(dot / std::sqrt(static_cast<double>(d)));
    sum += weight;
    for (size_t c = 0; c < width; ++c) out[c] += weight * v[c];
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace tandem::test::retrieval_rig
