#pragma once
// Lists of keys cut into chunks, and the fetch of a chunk's rows. Included by attend_list.inl only.
#include "base/page.h"
#include "kernels/gather/attend_list.h"
#include "kernels/gather/key_dots.h"

namespace tandem {
namespace {

constexpr int kLine = 64;
/// Keys between two rescalings of the sums; also how far ahead rows are fetched, where 32 to 128
/// measured the same.
constexpr int kChunk = 64;

/// Whether a row's elements are whole numbers times a scale.
template <class T>
constexpr bool kHasScales = sizeof(T) == 1;

/// Up to kChunk keys of one segment: rows[2 i] is the key, rows[2 i + 1] the value. The last group
/// is filled up with its last key.
template <class T>
struct Chunk {
  const KeySegment* segment;
  int first, n;
  const T* rows[2 * kChunk];
  const float* scales[kHasScales<T> ? kChunk : 1];  // of the key, and of the value next to it
};

/// Walks through the segments.
template <class T>
class Cursor {
 public:
  explicit Cursor(const AttendListParams& p)
      : p_(p), page_(int64_t{p.n_kv_heads} * kPageTokens * p.d) {
    const int64_t head = int64_t{p.kv_head} * kPageTokens * p.d;
    k_ = static_cast<const T*>(p.k_pool) + head;
    v_ = static_cast<const T*>(p.v_pool) + head;
    scales_ = p.scales;
  }

  /// The next chunk; without keys at the end.
  void next(Chunk<T>& chunk) {
    for (; segment_ < p_.n_segments && at_ >= p_.segments[segment_].n; at_ = 0) ++segment_;
    chunk.n = 0;
    if (segment_ >= p_.n_segments) return;
    const KeySegment& s = p_.segments[segment_];
    chunk.segment = &s;
    chunk.first = at_;
    chunk.n = s.n - at_ < kChunk ? s.n - at_ : kChunk;
    at_ += chunk.n;
    const auto put = [&](int i, int token) {
      const int64_t page = p_.pages[token / kPageTokens];
      const int64_t row = page * page_ + token % kPageTokens * p_.d;
      chunk.rows[2 * i] = k_ + row;
      chunk.rows[2 * i + 1] = v_ + row;
      if (s.norms != nullptr) __builtin_prefetch(s.norms + token, 0, 2);
      if constexpr (kHasScales<T>) {
        chunk.scales[i] =
            scales_ + 2 * ((page * p_.n_kv_heads + p_.kv_head) * kPageTokens + token % kPageTokens);
        __builtin_prefetch(chunk.scales[i], 0, 2);
      }
    };
    int i = 0;
    for (; i < chunk.n; ++i) put(i, s.ids[chunk.first + i]);
    for (; i % kGroup != 0; ++i) put(i, s.ids[chunk.first + chunk.n - 1]);
  }

 private:
  const AttendListParams& p_;
  const int64_t page_;
  const T* k_;
  const T* v_;
  const float* scales_;
  int segment_ = 0, at_ = 0;
};

/// Fetches the rows of a chunk into the L2 cache (the L1 has too few outstanding misses), a row a
/// step. Always inlined: GCC takes a function that only prefetches for one without effect and drops
/// the calls.
template <class T>
class Ahead {
 public:
  Ahead(const Chunk<T>& chunk, int d)
      : at_(chunk.rows), end_(chunk.rows + 2 * chunk.n), bytes_(d * static_cast<int>(sizeof(T))) {}

  TANDEM_INLINE void next() {
    if (at_ == end_) return;
    const char* row = reinterpret_cast<const char*>(*at_++);
    for (int at = 0; at < bytes_; at += kLine) __builtin_prefetch(row + at, 0, 2);
    // A row that does not begin with a line may end in one more.
    if (bytes_ % kLine != 0) __builtin_prefetch(row + bytes_ - 1, 0, 2);
  }
  TANDEM_INLINE void finish() {
    while (at_ != end_) next();
  }

 private:
  const T* const* at_;
  const T* const* end_;
  int bytes_;
};

}  // namespace
}  // namespace tandem
