#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/page.h"
#include "kernels/gather/attend_list.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Element c of a row of keys or values.
double element(const AttendListParams& p, bool is_key, int64_t row, int c) {
  const void* pool = is_key ? p.k_pool : p.v_pool;
  if (p.scales == nullptr) return element(pool, p.dtype, row * p.d + c);
  const double scale = p.scales[2 * row + (is_key ? 0 : 1)];
  return static_cast<const int8_t*>(pool)[row * p.d + c] * scale;
}

int64_t row_of(const AttendListParams& p, int token) {
  const int64_t page = p.pages[token / kPageTokens];
  return (page * p.n_kv_heads + p.kv_head) * kPageTokens + token % kPageTokens;
}

double log_u_at(const AttendListParams& p, double dot, float norm) {
  const float product = p.q_norm * norm;
  const double c = product == 0 ? 0 : std::clamp((dot - p.q_center) / product, -1.0, 1.0);
  const double x = (c + 1) * 0.5 * p.log_u_intervals;
  const int i = std::min(static_cast<int>(x), p.log_u_intervals - 1);
  return p.log_u[i] + (x - i) * (double{p.log_u[i + 1]} - p.log_u[i]);
}

double score(const AttendListParams& p, const KeySegment& segment, int i) {
  const int token = segment.ids[i];
  double dot = 0;
  for (int c = 0; c < p.d; ++c)
    dot += element(p.q, p.dtype, c) * element(p, true, row_of(p, token), c);
  double a = p.scale * dot;
  if (segment.bias != nullptr) a += segment.bias[i];
  if (segment.norms != nullptr) a -= log_u_at(p, dot, segment.norms[token]);
  return a;
}

}  // namespace

void attend_list_ref(const AttendListParams& p) {
  std::vector<double> scores, o(static_cast<size_t>(p.d));
  double m = -kInf, l = 0;
  for (int s = 0; s < p.n_segments; ++s)
    for (int i = 0; i < p.segments[s].n; ++i) {
      scores.push_back(score(p, p.segments[s], i));
      m = std::max(m, scores.back());
    }
  size_t at = 0;
  for (int s = 0; s < p.n_segments; ++s)
    for (int i = 0; i < p.segments[s].n; ++i) {
      const double a = scores[at++];
      if (a == -kInf) continue;
      const double weight = std::exp(a - m);
      const int64_t row = row_of(p, p.segments[s].ids[i]);
      for (int c = 0; c < p.d; ++c) o[static_cast<size_t>(c)] += weight * element(p, false, row, c);
      l += weight;
    }
  for (int c = 0; c < p.d; ++c)
    p.o[c] = static_cast<float>(l > 0 ? o[static_cast<size_t>(c)] / l : 0);
  *p.lse = static_cast<float>(l > 0 ? m + std::log(l) : -kInf);
}

}  // namespace tandem
