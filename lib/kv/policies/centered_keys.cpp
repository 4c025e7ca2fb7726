#include "kv/policies/centered_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/parallel.h"
#include "base/rng.h"
#include "ops/selection.h"

namespace tandem::kv {

KeyCenters::KeyCenters(const Bounds& bounds, HeadGrid grid)
    : geometry_(bounds.geometry), grid_(grid), max_seqs_(bounds.max_seqs) {}

size_t KeyCenters::floats(int n_slots) const {
  return grid_.cells(n_slots) * static_cast<size_t>(geometry_.head_dim);
}

void KeyCenters::plan(MemoryPlan& plan, const std::string& prefix) const {
  plan.add(prefix + ".centers", memory().size());
}

void KeyCenters::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse > 0) data_ = static_cast<float*>(arena.take(prefix + ".centers"));
}

void KeyCenters::set(int slot, std::span<const int> layers, Range ordinals, int begin, int end,
                     const PagedStore& store) {
  const int heads = geometry_.n_kv_heads;
  const auto d = static_cast<size_t>(geometry_.head_dim);
  parallel_for((ordinals.end - ordinals.begin) * heads, [&](int task) {
    const int ordinal = ordinals.begin + task / heads, head = task % heads;
    const KeyRows keys = store.keys(layers[static_cast<size_t>(ordinal)], slot, head);
    mean_of_keys(keys, begin, end, {at(slot, ordinal, head), d});
  });
}

void KeyCenters::copy(int from, int to) {
  if (data_ != nullptr)
    std::memcpy(data_ + floats(to), data_ + floats(from), floats(1) * sizeof(float));
}

void mean_of_keys(const KeyRows& keys, int begin, int end, std::span<float> mean) {
  std::vector<double> sum(mean.size());
  std::vector<float> key(mean.size());
  for (int t = begin; t < end; ++t) {
    keys.read(t, key.data());
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += key[c];
  }
  for (size_t c = 0; c < sum.size(); ++c) mean[c] = static_cast<float>(sum[c] / (end - begin));
}

float dot_of(std::span<const float> x, std::span<const float> y) {
  float sum[8] = {};  // chains that the compiler may run side by side
  size_t c = 0;
  for (; c + 8 <= x.size(); c += 8)
    for (size_t i = 0; i < 8; ++i) sum[i] += x[c + i] * y[c + i];
  for (; c < x.size(); ++c) sum[0] += x[c] * y[c];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

float norm_of(std::span<const float> x) { return std::sqrt(dot_of(x, x)); }

void read_centered(const KeyRows& keys, int token, int n, std::span<const float> center,
                   float* rows, float* norms) {
  const size_t d = center.size();
  for (int i = 0; i < n; ++i) {
    float* row = rows + static_cast<size_t>(i) * d;
    keys.read(token + i, row);
    for (size_t c = 0; c < d; ++c) row[c] -= center[c];
    norms[i] = norm_of({row, d});
  }
}

Projections::Projections(int head_dim, int columns)
    : head_dim_(head_dim), columns_(columns), stride_((columns + 63) / 64 * 64) {}

size_t Projections::bytes() const {
  return static_cast<size_t>(head_dim_) * static_cast<size_t>(stride_) * sizeof(float);
}

void Projections::plan(MemoryPlan& plan, const std::string& prefix) const {
  plan.add(prefix + ".projections", bytes());
}

void Projections::allocate(Arena& arena, const std::string& prefix, uint64_t seed) {
  data_ = static_cast<float*>(arena.take(prefix + ".projections"));
  draw(data_, seed);
}

void Projections::draw(float* to, uint64_t seed) const {
  std::fill_n(to, bytes() / sizeof(float), 0.0f);
  PhiloxStream draw(seed, 0x9a3e);
  for (int c = 0; c < head_dim_; ++c)
    for (int j = 0; j < columns_; ++j) {
      const double radius = std::sqrt(-2.0 * std::log(1.0 - draw.uniform()));
      const double angle = 2.0 * std::numbers::pi * draw.uniform();
      to[c * stride_ + j] = static_cast<float>(radius * std::cos(angle));
    }
}

void Projections::signs(const float* x, int n, Range columns, uint64_t* bits) const {
  ops::sign_project({.bits = bits,
                     .x = x,
                     .w = data_ + columns.begin,
                     .w_stride = stride_,
                     .d = head_dim_,
                     .n_bits = columns.end - columns.begin},
                    {0, n});
}

}  // namespace tandem::kv
