#pragma once
// Sizes of one thread's scratch of attention_backward.
#include "base/page.h"
#include "kernels/attention/attention_backward.h"

namespace tandem {
namespace {

/// Queries that meet a page of keys together: with 64 keys the products of a block have sides of 64
/// and d, and their operands stay in the second-level cache.
constexpr int kBackwardQueries = 64;

struct BackwardScratch {
  int64_t queries;  // of a document and KV head
  int64_t width;    // floats of a head vector: whole vectors of any ISA

  BackwardScratch(int64_t rows, int64_t group, int64_t d)
      : queries(rows * group), width((d + 15) / 16 * 16) {}
  int64_t padded_queries() const { return (queries + 15) / 16 * 16; }
  int64_t floats() const {
    constexpr int64_t kPage = kPageTokens, kBlock = kBackwardQueries;
    return queries * width + padded_queries() + 5 * kPage * width + 2 * kBlock * width +
           2 * kBlock * kPage;
  }
};

}  // namespace
}  // namespace tandem
