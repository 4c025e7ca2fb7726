#pragma once
#include <span>
#include <string>
#include <vector>

#include "kv/key_rows.h"
#include "kv/policies/token_index.h"
#include "kv/policy.h"

namespace tandem::kv {

/// One vector for every sequence, sparse layer and KV head: the mean of its indexed keys when its
/// prompt ended. Hashes see keys relative to it, since keys lie in a narrow cone nearly opposite to
/// the queries; it is frozen, so that all keys of a sequence are hashed alike. Scores never see it.
class KeyCenters {
 public:
  KeyCenters(const Bounds& bounds, HeadGrid grid);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);

  float* at(int slot, int ordinal, int kv_head) const {
    return data_ + grid_.cell(slot, ordinal, kv_head) * static_cast<size_t>(geometry_.head_dim);
  }
  /// Sets the centers of a slot under some sparse layers to the means of its keys [begin, end).
  void set(int slot, std::span<const int> layers, Range ordinals, int begin, int end,
           const PagedStore& store);
  void copy(int from, int to);
  /// Where all of them are.
  std::span<std::byte> memory() const {
    return {reinterpret_cast<std::byte*>(data_), floats(max_seqs_) * sizeof(float)};
  }

 private:
  size_t floats(int n_slots) const;

  Geometry geometry_;
  HeadGrid grid_;
  int max_seqs_;
  float* data_ = nullptr;
};

/// Keys [token, token + n) minus `center`: rows [n, head_dim] and their norms [n].
void read_centered(const KeyRows& keys, int token, int n, std::span<const float> center,
                   float* rows, float* norms);

/// The mean of keys [begin, end), [head_dim].
void mean_of_keys(const KeyRows& keys, int begin, int end, std::span<float> mean);

float norm_of(std::span<const float> x);
float dot_of(std::span<const float> x, std::span<const float> y);

/// Seeded Gaussian projections [head_dim, columns], columns rounded up to a multiple of 64 with
/// zeros.
class Projections {
 public:
  Projections(int head_dim, int columns);
  void plan(MemoryPlan&, const std::string& prefix) const;
  /// Takes the planned memory and draws what it holds.
  void allocate(Arena&, const std::string& prefix, uint64_t seed);
  /// Draws into memory of bytes(), [head_dim, stride()].
  void draw(float* to, uint64_t seed) const;
  size_t bytes() const;
  int64_t stride() const { return stride_; }
  /// Signs of rows x [n, head_dim] under some of the columns; `bits` as of sign_project.
  void signs(const float* x, int n, Range columns, uint64_t* bits) const;

 private:
  int head_dim_, columns_;
  int64_t stride_;
  float* data_ = nullptr;
};

}  // namespace tandem::kv
