#pragma once
// Shared by the tests of rope on CPU and GPU.
#include "kernels/variants.h"

namespace tandem::test {

/// A fused projection of n_rows tokens, tables of 50 positions, pages in shuffled order, and norms
/// of heads, which the parameters have if `normed` is set.
struct RopeCase {
  static constexpr int kPages = 5, kPositions = 50;
  static constexpr float kNormEps = 0.01f;  // of a size that shows where it is left out
  int n_rows, hq, hkv, d;
  DType act;
  ActBuffer qkv;
  Buffer<float> cosine, sine, q_norm, k_norm;
  std::vector<int32_t> pos, page, in_page;
  bool normed = false;
  int rotated;  // -1: all of d

  RopeCase(DType t, int rows, int heads, int kv_heads, int dim, size_t offset, int turned = -1)
      : n_rows(rows),
        hq(heads),
        hkv(kv_heads),
        d(dim),
        act(t),
        qkv(t, static_cast<size_t>(rows * (heads + 2 * kv_heads) * dim), offset),
        cosine(static_cast<size_t>(kPositions * dim / 2), offset),
        sine(static_cast<size_t>(kPositions * dim / 2), offset),
        q_norm(static_cast<size_t>(dim), offset),
        k_norm(static_cast<size_t>(dim), offset),
        rotated(turned) {
    PhiloxStream stream(4, static_cast<uint32_t>(dim));
    fill(qkv, stream, 2.0f);
    for (size_t i = 0; i < cosine.size(); ++i) {
      const double angle = stream.uniform() * 6.3;
      cosine[i] = static_cast<float>(std::cos(angle));
      sine[i] = static_cast<float>(std::sin(angle));
    }
    fill(q_norm, stream, 2.0f);
    fill(k_norm, stream, 2.0f);
    for (int r = 0; r < rows; ++r) {
      pos.push_back((7 * r + 3) % kPositions);
      page.push_back((3 * r + 1) % kPages);
      in_page.push_back((17 * r + 5) % kPageTokens);
    }
  }
  size_t pool_size() const { return static_cast<size_t>(kPages * hkv * kPageTokens * d); }
  RopeKvParams params(ActBuffer& q, ActBuffer& k, ActBuffer& v) {
    return {.q = q.data(),
            .k_pool = k.data(),
            .v_pool = v.data(),
            .qkv = qkv.data(),
            .cos_table = cosine.data(),
            .sin_table = sine.data(),
            .pos = pos.data(),
            .slot_page = page.data(),
            .slot_in_page = in_page.data(),
            .n_rows = n_rows,
            .n_heads = hq,
            .n_kv_heads = hkv,
            .head_dim = d,
            .act = act,
            .q_norm = normed ? q_norm.data() : nullptr,
            .k_norm = normed ? k_norm.data() : nullptr,
            .norm_eps = normed ? kNormEps : 0.0f,
            .rotated = rotated};
  }
};

/// All of a head of d, a part that suits wide accesses where d does, or nothing.
inline int turned(int d, int which) { return which == 0 ? -1 : which == 1 ? d / 4 * 2 : 0; }

/// Two products of factors within 1, one difference: 2 spacings of the larger input.
inline double rope_tolerance(DType act, float want) {
  return spacing(act) * std::abs(double{want}) + 2 * spacing(DType::f32) * 4.0;
}

/// Element i of heads that were normalised first. It adds the roundings of a sum of d squares,
/// and four more, to both of a pair. The sum of their magnitudes is at most sqrt 2 times the length
/// that turning keeps.
inline double normed_rope_tolerance(DType act, ActBuffer& want, size_t i, const RopeCase& c) {
  const auto width = static_cast<size_t>(c.d);
  const auto half = static_cast<size_t>(c.rotated < 0 ? c.d : c.rotated) / 2;
  const double x = want.get(i);
  const double y = i % width >= 2 * half ? 0.0 : want.get(i % width < half ? i + half : i - half);
  return spacing(act) * std::abs(x) +
         (6 + c.d / 16.0) * spacing(DType::f32) * std::sqrt(2.0) * std::hypot(x, y);
}

}  // namespace tandem::test
