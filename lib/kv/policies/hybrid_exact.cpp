#include "kv/policies/hybrid_exact.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/selection.h"

namespace tandem::kv {
namespace {

using recipe::HybridBudget;

/// Where a head's scores count from among those of others; nothing is taken off a head's alone.
std::vector<float> references_of(const HybridExactParams& p) {
  std::vector<float> references(p.queries.size());
  for (size_t h = 0; h < references.size() && references.size() > 1; ++h)
    references[h] = sampled_score(p.scores + static_cast<int64_t>(h) * p.stride, p.n, p.wanted);
  return references;
}

/// What keys are chosen by: n scores of one head, or the ranks of several.
const float* ranked(const HybridExactParams& p, const float* scores, int n,
                    std::span<const float> references) {
  if (references.size() == 1) return scores;
  group_ranks({.ranks = p.ranks,
               .scores = scores,
               .stride = p.stride,
               .references = references.data(),
               .n_heads = static_cast<int>(references.size()),
               .n = n});
  return p.ranks;
}

/// The keys whose other bits are read, into p.candidates: those that reach the floor of about the
/// share to refine, by `ranks`; all where no more than are wanted do. Returns how many.
int find_candidates(const HybridExactParams& p, const float* ranks) {
  // For twice as many as are wanted at least: with fewer there is little to choose.
  const int m = std::max(2 * p.wanted, static_cast<int>(std::lround(p.spec.refine * p.n)));
  if (m < p.n) {
    const int n = ops::select_reached(
        {.ids = p.candidates, .scores = ranks, .n = p.n, .floor = sampled_score(ranks, p.n, m)});
    if (n > p.wanted) return n;
  }
  std::iota(p.candidates, p.candidates + p.n, 0);
  return p.n;
}

/// How many of the best candidates hold the share of each head's estimated mass that the budget
/// asks for, to a sixteenth of a score; `wanted` at most.
int keys_of_mass(const HybridExactParams& p, const float* ranks, int candidates) {
  constexpr int kBins = 256, kBinsAUnit = 16;
  const float top = *std::max_element(ranks, ranks + candidates);
  std::array<int, kBins> count{};
  std::vector<size_t> bins(static_cast<size_t>(candidates));
  for (size_t i = 0; i < bins.size(); ++i) {
    bins[i] =
        static_cast<size_t>(std::min(static_cast<float>(kBins - 1), (top - ranks[i]) * kBinsAUnit));
    ++count[bins[i]];
  }
  size_t needed = 0;  // bins
  for (size_t h = 0; h < p.queries.size(); ++h) {
    const auto row = static_cast<int64_t>(h) * p.stride;
    const float* refined = p.refined + row;
    const float most = *std::max_element(refined, refined + candidates);
    ops::tail_masses(
        {.masses = p.masses, .scores = p.scores + row, .n = p.n, .most = most, .origin = most});
    const double all = std::accumulate(p.masses, p.masses + (p.n + kMeanKeys - 1) / kMeanKeys, 0.0);
    std::array<double, kBins> mass{};
    for (size_t i = 0; i < bins.size(); ++i) mass[bins[i]] += std::exp(double{refined[i]} - most);
    double sum = 0;
    size_t bin = 0;
    while (bin < kBins && sum < p.spec.mass * all) sum += mass[bin++];
    needed = std::max(needed, bin);
  }
  const int m = std::accumulate(count.begin(), count.begin() + static_cast<int>(needed), 0);
  return std::clamp(m, std::min(recipe::Hybrid::kLeastExact, p.wanted), p.wanted);
}

}  // namespace

void choose_exact(const HybridExactParams& p, std::span<KeyList> lists,
                  std::span<ExactKeys> exact) {
  const std::vector<float> references = references_of(p);
  const int candidates = find_candidates(p, ranked(p, p.scores, p.n, references));
  const std::span<const int32_t> keys(p.candidates, static_cast<size_t>(candidates));
  for (size_t h = 0; h < lists.size(); ++h) {
    float* scores = p.scores + static_cast<int64_t>(h) * p.stride;
    float* refined = p.refined + static_cast<int64_t>(h) * p.stride;
    if (p.codes.bits() > 1) {
      p.codes.refine(p.query.slot, p.ordinal, p.query.kv_head, p.queries[h], keys, scores, refined);
      lists[h].index_bytes +=
          p.codes.refine_bytes_a_key() * candidates / static_cast<double>(lists.size());
    } else {
      for (const int32_t key : keys) *refined++ = scores[key];
    }
  }
  const float* ranks = ranked(p, p.refined, candidates, references);
  const int m = p.spec.budget == HybridBudget::mass ? keys_of_mass(p, ranks, candidates) : p.wanted;
  float threshold = 0;
  ops::select_top({.ids = p.ids,
                   .threshold = &threshold,
                   .scores = ranks,
                   .n = candidates,
                   .m = m,
                   .first_id = 0,
                   .scratch = p.select});
  for (int i = 0; i < m; ++i) p.ids[i] = keys[static_cast<size_t>(p.ids[i])];
  for (size_t h = 0; h < lists.size(); ++h) {
    float* scores = p.scores + static_cast<int64_t>(h) * p.stride;
    ExactKeys& of_head = exact[h] = {.n = m, .threshold = references[h] + threshold, .mass = 0};
    for (int i = 0; i < m; ++i) {
      float& score = scores[p.ids[i]];
      if (p.spec.budget == HybridBudget::error)
        of_head.mass += std::exp(double{score} - of_head.threshold);
      score = -std::numeric_limits<float>::infinity();
    }
    lists[h].segments.push_back({p.ids, m, nullptr, nullptr});
    if (h > 0) lists[h].n_before = lists[h].n_keys();
  }
  for (int i = 0; i < m; ++i) p.ids[i] += p.first_id;
}

}  // namespace tandem::kv
