#include "kernels/sample/row_split.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/sample/sample_cuda.h"

namespace tandem::cuda {
namespace {

constexpr int kPartTokens = 4096;  // enough to outweigh what the blocks publish
constexpr int kFewRows = 2;        // clusters of 16 blocks find few places on a GPU
constexpr int kMostClusterParts = 16, kMostParts = 32;
// Of a cluster's block: 198 KiB of 227, the rest for what kernels declare and for marks.
constexpr int kMostPartWords = 3 * 33 * kRowThreads;

int usual_parts(int n_rows) { return n_rows <= kFewRows ? 16 : 8; }

RowSplit in_parts(int vocab, int parts) {
  const int run = (vocab + parts * kRowThreads - 1) / (parts * kRowThreads);
  return {.vocab = vocab, .parts = parts, .run = run | 1};
}

RowSplit split_for_cluster(int vocab, int n_rows, int words) {
  int parts = 1;
  while (parts < usual_parts(n_rows) && parts * kPartTokens < vocab) parts *= 2;
  for (;; parts *= 2) {
    const RowSplit split = in_parts(vocab, parts);
    if (split.part_size() * words <= kMostPartWords) return split;
    TANDEM_CHECK(parts < kMostClusterParts, "a vocabulary of {} with {} words a token is too large",
                 vocab, words);
  }
}

/// More parts than fill the GPU only where a block has no room for fewer.
RowSplit split_for_meeting(const Gpu& gpu, int vocab, int n_rows, int words) {
  const int most = std::min(gpu.multiprocessors, kMostParts);
  const auto may_double = [&](int parts) { return 2 * parts <= most; };
  int parts = 1;
  while (may_double(parts) && parts < usual_parts(n_rows) && parts * kPartTokens < vocab &&
         parts * n_rows < gpu.multiprocessors)
    parts *= 2;
  const size_t room = row_room(gpu);
  while (may_double(parts) &&
         in_parts(vocab, parts).part_bytes() * static_cast<size_t>(words) > room)
    parts *= 2;
  return in_parts(vocab, parts);
}

}  // namespace

size_t row_room(const Gpu& gpu) {
  return static_cast<size_t>(gpu.block_shared_bytes) - kMostPublishedBytes - 1024;
}

RowSplit split_row(const Gpu& gpu, int vocab, int n_rows, int words) {
  TANDEM_CHECK(vocab >= 1 && vocab <= kMaxVocabCuda, "a vocabulary of {} is not supported on a GPU",
               vocab);
  if (gpu.isa == GpuIsa::hopper) return split_for_cluster(vocab, n_rows, words);
  TANDEM_CHECK(n_rows <= kMostRows, "{} rows of logits exceed the limit of {}", n_rows, kMostRows);
  return split_for_meeting(gpu, vocab, n_rows, words);
}

RowSplit split_rows_at_once(const Gpu& gpu, int vocab, int n_rows) {
  // Clusters that an H200 finds places for; none reaches across its groups of some 16
  // multiprocessors. 16 rows of 32,000 tokens take twice as long in 8 parts as in 6.
  struct Places {
    int parts, clusters;
  };
  constexpr Places kPlaces[] = {{16, 7}, {8, 15}, {6, 17}, {5, 22}, {4, 30}, {3, 39}, {2, 66}};
  const RowSplit usual = split_row(gpu, vocab, n_rows);
  if (gpu.isa != GpuIsa::hopper) return usual;
  for (const Places& p : kPlaces) {
    const RowSplit split{.vocab = vocab,
                         .parts = p.parts,
                         .run = (vocab + p.parts * kRowThreads - 1) / (p.parts * kRowThreads)};
    if (p.parts <= usual.parts && p.clusters >= n_rows && split.part_size() <= kMostPartWords)
      return split;
  }
  return usual;
}

RowGroups split_among_groups(const Gpu& gpu, int vocab, int n_trees, size_t own_bytes) {
  constexpr int kWords = 3;
  if (gpu.isa != GpuIsa::hopper) {
    const int multiprocessors = std::max(gpu.multiprocessors, 1);
    const RowSplit split = split_row(gpu, vocab, std::max(multiprocessors / 4, 1), kWords);
    return {split, std::max(multiprocessors / split.parts, 1)};
  }
  TANDEM_CHECK(vocab >= 1 && vocab <= kMaxVocabCuda, "a vocabulary of {} is not supported on a GPU",
               vocab);
  // Two blocks a multiprocessor, if 16 blocks then have room for a row.
  constexpr size_t kHalf = 112u * 1024;
  int parts = 1;
  if (n_trees <= kFewRows)
    while (parts < kMostClusterParts / 2 && parts * kPartTokens < vocab) parts *= 2;
  RowSplit split = in_parts(vocab, parts);
  while (parts < kMostClusterParts &&
         split.part_bytes() * kWords + mark_bytes(split) + own_bytes > kHalf)
    split = in_parts(vocab, parts *= 2);
  TANDEM_CHECK(split.part_size() * kWords <= kMostPartWords,
               "a vocabulary of {} with {} words a token is too large", vocab, kWords);
  return {split, std::max(2 * gpu.multiprocessors / parts, 1)};
}

void place_row(RowSplit& split, const Gpu& gpu, size_t data_bytes, void* memory) {
  split.memory = memory;
  split.data_bytes = static_cast<int64_t>(data_bytes);
  split.in_memory = data_bytes > row_room(gpu);
  TANDEM_CHECK(memory != nullptr || (split.parts == 1 && !split.in_memory),
               "rows of {} logits need a workspace", split.vocab);
}

size_t row_memory_bytes(const Gpu& gpu, int vocab, int max_rows, int words) {
  if (gpu.isa == GpuIsa::hopper) return 0;
  size_t most = 0;
  for (int n = 1; n <= std::min(max_rows, kMostRows); ++n) {
    const RowSplit split = split_row(gpu, vocab, n, words);
    const size_t data = split.part_bytes() * static_cast<size_t>(words) + mark_bytes(split);
    const auto blocks = static_cast<size_t>(n) * static_cast<size_t>(split.parts);
    most = std::max(most, blocks * (kMostPublishedBytes + (data > row_room(gpu) ? data : 0)));
  }
  return kRowCounterBytes + most;
}

void check_top_n(int n, int vocab) {
  TANDEM_CHECK(n >= 1 && n <= kMaxTopNCuda && n <= vocab,
               "the top {} of a vocabulary of {} are not supported", n, vocab);
}

}  // namespace tandem::cuda
