#include "kernels/lsh/hash_tables.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little);  // a code is cut from unaligned bytes

constexpr int kIdsALine = 32;

/// A table's part of a block.
struct TableView {
  uint16_t* offsets;
  uint16_t* ids;
};

TableView table_of(const HashBlock& block, int64_t table, int64_t buckets) {
  return {block.offsets + table * (buckets + 1), block.ids + table * block.capacity};
}

/// Counting sort in the table's own offsets: while ids are placed, offsets[c + 1] is where the next
/// one of bucket c goes, and it ends as where bucket c + 1 begins. Ids are fetched for writing
/// while the codes are counted, since they are then written in any order.
void build(TableView table, const uint16_t* codes, int n, int buckets) {
  uint16_t* next = table.offsets + 1;
  std::memset(table.offsets, 0, static_cast<std::size_t>(buckets + 1) * sizeof(uint16_t));
  int i = 0;
  for (; i + kIdsALine <= n; i += kIdsALine) {
    __builtin_prefetch(table.ids + i, 1);
    for (int j = 0; j < kIdsALine; ++j) ++next[codes[i + j]];
  }
  for (; i < n; ++i) ++next[codes[i]];
  unsigned sum = 0;
  for (int c = 0; c < buckets; ++c) {
    const unsigned count = next[c];
    next[c] = static_cast<uint16_t>(sum);
    sum += count;
  }
  for (i = 0; i < n; ++i) table.ids[next[codes[i]]++] = static_cast<uint16_t>(i);
}

/// Moves old ids up to make room for the new ones of their and all lower buckets, from the last
/// bucket down; buckets between two that grow move together. `added[c]` becomes the place of the
/// next new id of bucket c.
void spread(TableView table, uint32_t* added, int n_new, int buckets) {
  auto shift = static_cast<uint32_t>(n_new);
  uint32_t moved = table.offsets[buckets];  // old ids from here on are in place
  const auto move = [&](uint32_t begin) {
    std::memmove(table.ids + begin + shift, table.ids + begin, (moved - begin) * sizeof(uint16_t));
    moved = begin;
  };
  for (int c = buckets - 1; c >= 0 && shift > 0; --c) {
    const uint32_t count = added[c], end = table.offsets[c + 1];
    table.offsets[c + 1] = static_cast<uint16_t>(end + shift);
    if (count == 0) continue;
    move(end);
    shift -= count;
    added[c] = end + shift;
  }
}

void append(TableView table, const uint16_t* codes, int n_old, int n_new, int buckets,
            uint32_t* added) {
  std::memset(added, 0, static_cast<std::size_t>(buckets) * sizeof(uint32_t));
  for (int i = 0; i < n_new; ++i) ++added[codes[i]];
  spread(table, added, n_new, buckets);
  for (int i = 0; i < n_new; ++i) table.ids[added[codes[i]]++] = static_cast<uint16_t>(n_old + i);
}

}  // namespace

void hash_codes(const HashCodesParams& p, Range tables) {
  // Rows of a piece stay in the first-level cache while every table takes its bits from them.
  constexpr int kPiece = 128;
  const uint64_t mask = (uint64_t{1} << p.code_bits) - 1;
  const auto* bytes = reinterpret_cast<const unsigned char*>(p.bits);
  const int64_t row_bytes = p.words * 8;
  for (int begin = 0; begin < p.n_tokens; begin += kPiece) {
    const int n = std::min(kPiece, p.n_tokens - begin);
    for (int t = tables.begin; t < tables.end; ++t) {
      // One load of eight bytes that lie inside the row and hold the code.
      const int64_t bit = static_cast<int64_t>(t) * p.code_bits;
      const int64_t at = std::min(bit / 8, row_bytes - 8);
      const auto shift = static_cast<unsigned>(bit - 8 * at);
      const unsigned char* row = bytes + begin * row_bytes + at;
      uint16_t* out = p.codes + t * p.code_stride + begin;
      for (int i = 0; i < n; ++i, row += row_bytes) {
        uint64_t v;
        std::memcpy(&v, row, sizeof v);
        out[i] = static_cast<uint16_t>((v >> shift) & mask);
      }
    }
  }
}

void hash_append(const HashAppendParams& p, Range tables) {
  const int buckets = 1 << p.code_bits;
  for (int t = tables.begin; t < tables.end; ++t) {
    const TableView table = table_of(p.block, t, buckets);
    const uint16_t* codes = p.codes + t * p.code_stride;
    if (p.block.n_tokens == 0)
      build(table, codes, p.n_new, buckets);
    else
      append(table, codes, p.block.n_tokens, p.n_new, buckets, p.scratch);
  }
}

}  // namespace tandem
