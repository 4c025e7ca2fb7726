#pragma once
#include <memory>
#include <vector>

#include "bench/kernel_data.h"
#include "kernels/lsh/hash_tables.h"
#include "kernels/lsh/sign_project.h"

// Synthetic keys and queries, and hash tables over them with MagicPIG's defaults (10 bits, 150
// tables), for the cases of kernel_cases_lsh.cpp. Keys are N(0, I) + 2 t e less their mean, t of
// N(0, 1); queries are e + 0.5 of a unit vector of noise.
namespace tandem::bench {

inline constexpr int kCodeBits = 10, kTables = 150, kMinHits = 2;
inline constexpr int kBuckets = 1 << kCodeBits;
inline constexpr int kCodeWords = (kCodeBits * kTables + 63) / 64;
/// Distinct queries. Enough that a second of runs rarely meets a query and a copy of the tables
/// again: tables of 1 GB would else be read at the few places that fit a last-level cache.
inline constexpr int kQueries = 1021;

/// Sizes of the tables over n tokens under one KV head.
struct LshShape {
  int n, d;
  int blocks() const { return (n + kHashBlockTokens - 1) / kHashBlockTokens; }
  int capacity() const { return n < kHashBlockTokens ? n : kHashBlockTokens; }
  int tokens(int block) const {
    const int left = n - block * capacity();
    return left < capacity() ? left : capacity();
  }
  int64_t offsets() const { return int64_t{kTables} * (kBuckets + 1); }  // of a block
  int64_t ids() const { return int64_t{kTables} * capacity(); }          // of a block
  size_t bytes() const { return static_cast<size_t>(2 * blocks() * (offsets() + ids())); }
  /// Copies that together take a gigabyte, a multiple of n.
  int copies(int multiple_of) const;
};

OwnedTensor lsh_keys(const LshShape& s);     // [n, d]
OwnedTensor lsh_queries(const LshShape& s);  // [kQueries, d]
OwnedTensor lsh_codes(const LshShape& s);    // u16 [kQueries, kTables] of the queries

/// Rows, projections and the bits of the rows.
struct Projection {
  OwnedTensor x, w, bits;
  explicit Projection(OwnedTensor rows);
  SignProjectParams params() const;
  void run() const;
};

/// Codes and tables, the latter in several copies.
struct LshTables {
  LshShape shape;
  OwnedTensor codes;         // [kTables, n]
  OwnedTensor offsets, ids;  // [copies, blocks, kTables, ...]
  OwnedTensor scratch;       // [blocks * kParts, ...]
  LshTables(const LshShape& s, int copies);

  HashBlock block(int copy, int b, int n_tokens) const;
  /// The codes of all tokens from their bits.
  void cut(const OwnedTensor& bits) const { each_part(&bits, -1); }
  /// The tables of a copy from the codes; with bits, the codes first.
  void build(int copy, const OwnedTensor* bits = nullptr) const { each_part(bits, copy); }
  /// Makes all copies what the first one is.
  void replicate() const;

 private:
  static constexpr int kParts = 3;  // tasks a block; few, since each reads all rows of bits
  void each_part(const OwnedTensor* bits, int copy) const;
};

}  // namespace tandem::bench
