#pragma once
#include <bit>
#include <cstdint>
#include <initializer_list>

namespace tandem::kv {

/// The policies that read a sequence: each is notified of its prompt, its commits and its
/// truncation, and tokens stay as long as one of them may need them.
class Readers {
 public:
  static constexpr int kMaxPolicies = 64;  // of a cache

  /// One policy of the cache, the first unless told otherwise.
  Readers(int policy = 0) { add(policy); }  // NOLINT: a policy is a set of one
  Readers(std::initializer_list<int> policies) {
    for (const int policy : policies) add(policy);
  }
  /// The first n policies of a cache.
  static Readers first(int n) {
    Readers all;
    for (int i = 0; i < n; ++i) all.add(i);
    return all;
  }

  bool has(int policy) const { return ((bits_ >> policy) & 1) != 0; }
  int count() const { return std::popcount(bits_); }
  /// The one with the smallest number.
  int front() const { return std::countr_zero(bits_); }
  void add(int policy) { bits_ |= uint64_t{1} << policy; }

 private:
  uint64_t bits_ = 0;
};

}  // namespace tandem::kv
