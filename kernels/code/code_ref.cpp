#include <cmath>
#include <vector>

#include "kernels/code/code.h"

namespace tandem {
namespace {

/// Bit `plane` of coordinate c of a key, 0 the sign.
int bit_of(const uint8_t* groups, const uint8_t* low, int dims, int bits, int64_t key, int plane,
           int c) {
  if (plane > 0)
    return low[key * code_low_bytes(dims, bits) + (plane - 1) * dims / 8 + c / 8] >> (c % 8) & 1;
  const int64_t in_group = key % kCodeKeys;
  const uint8_t* signs = groups + key / kCodeKeys * code_group_bytes(dims);
  const int byte = signs[c / 4 * 64 + 2 * (in_group % 32) + in_group / 32 % 2];
  return byte >> (in_group / 64 * 4 + c % 4) & 1;
}

/// The sum times a gain, with the key's scale and share.
float score(const uint8_t* groups, const CodeQuery& q, int dims, int64_t key, int sum, float gain) {
  const uint8_t* scales =
      groups + key / kCodeKeys * code_group_bytes(dims) + int64_t{16} * dims + key % kCodeKeys;
  const float by_code = (static_cast<float>(sum) * gain) * code_scale(scales[0]);
  const float by_axis = q.axis_gain * static_cast<float>(static_cast<int8_t>(scales[kCodeKeys]));
  return by_code + by_axis;
}

}  // namespace

void code_scan_ref(const CodeScanParams& p, Range keys) {
  for (int j = 0; j < p.n_queries; ++j)
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      const CodeQuery& q = p.queries[j];
      int sum = 0;
      for (int c = 0; c < p.dims; ++c)
        sum += bit_of(p.groups, nullptr, p.dims, 1, key, 0, c) != 0 ? q.q[c] : -q.q[c];
      p.scores[j * p.score_stride + key] = score(p.groups, q, p.dims, key, sum, q.sign_gain);
    }
}

void code_refine_ref(const CodeRefineParams& p) {
  for (int i = 0; i < p.n; ++i) {
    const int64_t key = p.keys[i] - p.first;
    int sum = 0;
    for (int c = 0; c < p.dims; ++c) {
      int odd = 0;  // 2 y
      for (int b = 0; b < p.bits; ++b)
        odd += (bit_of(p.groups, p.low, p.dims, p.bits, key, b, c) != 0 ? 1 : -1)
               << (p.bits - 1 - b);
      sum += p.query->q[c] * odd;
    }
    p.refined[i] = p.scores[p.keys[i]] = score(p.groups, *p.query, p.dims, key, sum, p.query->gain);
  }
}

void rotate_rows_ref(const RotateRowsParams& p, Range rows) {
  int size = 1;
  while (2 * size <= p.dims) size *= 2;
  std::vector<double> x(static_cast<size_t>(p.dims)), y(static_cast<size_t>(size));
  const auto hadamard = [&](int first) {
    for (int i = 0; i < size; ++i) {
      double sum = 0;
      for (int j = 0; j < size; ++j)
        sum += (__builtin_popcount(static_cast<unsigned>(i & j)) % 2 != 0 ? -1 : 1) *
               x[static_cast<size_t>(first + j)];
      y[static_cast<size_t>(i)] = sum / std::sqrt(double(size));
    }
    for (int i = 0; i < size; ++i) x[static_cast<size_t>(first + i)] = y[static_cast<size_t>(i)];
  };
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* row = p.rows + r * p.dims;
    for (int c = 0; c < p.dims; ++c) x[static_cast<size_t>(c)] = row[c];
    for (int turn = 0; turn < 2; ++turn) {
      for (int c = 0; c < p.dims; ++c) x[static_cast<size_t>(c)] *= p.signs[turn * p.dims + c];
      hadamard(0);
      if (size < p.dims) hadamard(p.dims - size);
    }
    for (int c = 0; c < p.dims; ++c) row[c] = static_cast<float>(x[static_cast<size_t>(c)]);
  }
}

}  // namespace tandem
