#include "kv/policies/token_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/rng.h"

using namespace tandem::kv;

namespace {

constexpr int kRoll = TokenIndex::kRoll;

/// What blocks would hold if the pieces were written: the token at every place.
struct Written {
  std::vector<std::vector<int>> blocks;
  explicit Written(const TokenIndex& index)
      : blocks(static_cast<size_t>(index.n_blocks()),
               std::vector<int>(static_cast<size_t>(index.capacity()), -1)) {}

  void write(const std::vector<TokenIndex::Piece>& pieces, int seq) {
    for (const TokenIndex::Piece& p : pieces) {
      auto& block = blocks[static_cast<size_t>(p.block)];
      if (p.copy_of >= 0) block = blocks[static_cast<size_t>(p.copy_of)];
      for (int i = 0; i < p.n; ++i)
        block[static_cast<size_t>(p.offset + i)] = 100000 * seq + p.token + i;
    }
  }
  /// Tokens of a sequence as its blocks show them.
  std::vector<int> read(const TokenIndex& index, int slot) const {
    std::vector<int> tokens;
    for (size_t i = 0; i < index.blocks(slot).size(); ++i) {
      const auto& block = blocks[static_cast<size_t>(index.blocks(slot)[i])];
      const int n = index.block_tokens(slot, static_cast<int>(i));
      tokens.insert(tokens.end(), block.begin(), block.begin() + n);
    }
    return tokens;
  }
};

}  // namespace

TEST_SUITE("kv/token_index") {
  TEST_CASE("blocks: whole pages, no larger than what is indexed of a sequence") {
    CHECK(TokenIndex({.max_tokens = 1, .total_tokens = 1}).capacity() == 64);
    // 4 sinks and 64 recent tokens are not.
    CHECK(TokenIndex({.max_tokens = 1000, .total_tokens = 1000}).capacity() == 960);
    CHECK(TokenIndex({.max_tokens = 1028, .total_tokens = 1028}).capacity() == 960);
    CHECK(TokenIndex({.max_tokens = 1029, .total_tokens = 1029}).capacity() == 1024);
    CHECK(TokenIndex({.max_tokens = 32836, .total_tokens = 32836}).n_blocks() == 1);
    CHECK(TokenIndex({.max_tokens = 32837, .total_tokens = 32837}).n_blocks() == 2);
    CHECK(TokenIndex({.max_tokens = 98304, .total_tokens = 98304}).capacity() == 32768);
    CHECK(TokenIndex({.max_tokens = 98304, .total_tokens = 98304}).n_blocks() == 3);
    // Four sequences of one block each; of longer ones what they fill and an end for each. Of
    // shared text also the copies that forks begin with, or nothing for forks that write nothing.
    const auto n_blocks = [](int seqs, int prompts, int longest, int64_t total) {
      return TokenIndex({.max_seqs = seqs,
                         .max_prompts = prompts,
                         .max_tokens = longest,
                         .total_tokens = total})
          .n_blocks();
    };
    CHECK(n_blocks(4, 0, 1000, 4000) == 4);
    CHECK(n_blocks(8, 8, 98304, 98304 + 7000) == 4 + 8);
    CHECK(n_blocks(8, 0, 98304, 98304 + 7000) == 4 + 2 * 8);
    CHECK(n_blocks(8, 1, 98304, 98304 + 7000) == 3);
  }

  TEST_CASE("what is indexed: a prompt at once, generated text by kRoll") {
    TokenIndex index({.max_tokens = 8192, .total_tokens = 8192, .sinks = 4, .recent = 64});
    CHECK(index.empty(0));
    for (const int length : {0, 1, 4, 5, 68}) CHECK(index.wanted_end(0, length, true) == 4);
    CHECK(index.wanted_end(0, 69, true) == 5);
    CHECK(index.wanted_end(0, 69 + kRoll - 2, false) == 4);
    CHECK(index.wanted_end(0, 69 + kRoll - 1, false) == 4 + kRoll);
    index.extend(0, index.wanted_end(0, 300, true));
    CHECK(index.end(0) == 236);
    CHECK(index.wanted_end(0, 300 + kRoll - 1, false) == 236);
    CHECK(index.wanted_end(0, 300 + kRoll, false) == 236 + kRoll);
    // Never back: a shorter text is a truncation's business.
    CHECK(index.wanted_end(0, 200, true) == 236);
    CHECK(index.wanted_end(0, 200, false) == 236);
  }

  TEST_CASE("a prompt that goes on is indexed at once, unless a block would be copied for it") {
    TokenIndex index(
        {.max_seqs = 2, .max_tokens = 8192, .total_tokens = 16384, .sinks = 4, .recent = 64});
    index.extend(0, index.wanted_end(0, 300, true));
    CHECK(index.wanted_end(0, 310, true) == 246);
    index.fork(0, 1);
    for (const int slot : {0, 1}) {
      CHECK(index.wanted_end(slot, 310, true) == 236);
      CHECK(index.wanted_end(slot, 300 + kRoll, true) == 236 + kRoll);
    }
    index.release(0);
    CHECK(index.wanted_end(1, 310, true) == 246);
  }

  TEST_CASE("units: pages of Quest are whole") {
    TokenIndex index(
        {.max_tokens = 8192, .total_tokens = 8192, .sinks = 0, .recent = 64, .unit = 16});
    CHECK(index.wanted_end(0, 79, true) == 0);
    CHECK(index.wanted_end(0, 80, true) == 16);
    CHECK(index.wanted_end(0, 64 + 500, true) == 496);
  }

  TEST_CASE("pieces stop at the ends of blocks") {
    TokenIndex index(
        {.max_tokens = 1000, .total_tokens = 1000, .sinks = 4, .recent = 1, .max_block = 128});
    REQUIRE(index.capacity() == 128);
    const auto first = index.extend(0, 4 + 300);
    REQUIRE(first.size() == 3);
    for (int i = 0; i < 3; ++i) {
      const TokenIndex::Piece& p = first[static_cast<size_t>(i)];
      CHECK(p.block == index.blocks(0)[static_cast<size_t>(i)]);
      CHECK(p.copy_of == -1);
      CHECK(p.offset == 0);
      CHECK(p.token == 4 + 128 * i);
      CHECK(p.n == (i < 2 ? 128 : 44));
      CHECK(index.block_tokens(0, i) == p.n);
    }
    const auto second = index.extend(0, 4 + 400);
    REQUIRE(second.size() == 2);
    CHECK(second[0].offset == 44);
    CHECK(second[0].n == 84);
    CHECK(second[0].block == first[2].block);
    CHECK(second[1].offset == 0);
    CHECK(second[1].token == 4 + 384);
    CHECK(index.extend(0, 4 + 400).empty());
  }

  TEST_CASE("a fork shares blocks and copies the last when one of them writes") {
    TokenIndex index({.max_seqs = 2,
                      .max_tokens = 512,
                      .total_tokens = 1024,
                      .sinks = 4,
                      .recent = 1,
                      .max_block = 128});
    index.extend(0, 4 + 200);
    index.fork(0, 1);
    CHECK(index.blocks(1) == index.blocks(0));
    CHECK(index.end(1) == index.end(0));
    const std::vector<int> shared = index.blocks(0);
    const auto pieces = index.extend(1, 4 + 210);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].copy_of == shared[1]);
    CHECK(pieces[0].block != shared[1]);
    CHECK(pieces[0].offset == 72);
    CHECK(index.blocks(0) == shared);
    CHECK(index.blocks(1)[0] == shared[0]);
    // The other is alone in its last block now.
    const auto own = index.extend(0, 4 + 205);
    REQUIRE(own.size() == 1);
    CHECK(own[0].copy_of == -1);
    CHECK(own[0].block == shared[1]);
  }

  TEST_CASE("forks that each go beyond the block they began in find their blocks") {
    constexpr int kForks = 8, kPrompt = 250, kOwn = 40;
    for (const int capacity : {64, 128, 256}) {
      TokenIndex index({.max_seqs = kForks + 1,
                        .max_tokens = kPrompt + kOwn,
                        .total_tokens = kPrompt + kForks * kOwn,
                        .sinks = 0,
                        .recent = 1,
                        .max_block = capacity});
      REQUIRE(index.capacity() == capacity);
      index.extend(0, kPrompt);
      for (int fork = 1; fork <= kForks; ++fork) {
        index.fork(0, fork);
        index.extend(fork, kPrompt + kOwn);
        CHECK(index.end(fork) == kPrompt + kOwn);
      }
    }
  }

  TEST_CASE("a fork at the end of a block copies nothing") {
    TokenIndex index({.max_seqs = 2,
                      .max_tokens = 512,
                      .total_tokens = 1024,
                      .sinks = 4,
                      .recent = 1,
                      .max_block = 128});
    index.extend(0, 4 + 128);
    index.fork(0, 1);
    const auto pieces = index.extend(1, 4 + 130);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].copy_of == -1);
    CHECK(index.blocks(0).size() == 1);
  }

  TEST_CASE("as many blocks as were promised, and freed ones come again") {
    TokenIndex index({.max_seqs = 3,
                      .max_tokens = 256,
                      .total_tokens = 768,
                      .sinks = 0,
                      .recent = 1,
                      .max_block = 64});
    for (int round = 0; round < 3; ++round) {
      std::set<int> used;
      for (int slot = 0; slot < 3; ++slot) {
        index.extend(slot, 256);
        used.insert(index.blocks(slot).begin(), index.blocks(slot).end());
      }
      CHECK(used.size() == 12);
      for (int slot = 0; slot < 3; ++slot) {
        index.release(slot);
        CHECK(index.empty(slot));
      }
    }
  }

  TEST_CASE("any order of forks, extensions and releases: every sequence finds its own tokens") {
    constexpr int kSeqs = 4;
    TokenIndex index({.max_seqs = kSeqs,
                      .max_tokens = 600,
                      .total_tokens = 600 * kSeqs,
                      .sinks = 2,
                      .recent = 1,
                      .max_block = 128});
    Written written(index);
    std::vector<std::vector<int>> want(kSeqs);
    tandem::PhiloxStream draw(31);
    for (int round = 0; round < 2000; ++round) {
      const auto slot = static_cast<int>(draw.below(kSeqs));
      const auto at = static_cast<size_t>(slot);
      switch (draw.below(4)) {
        case 0:
          index.release(slot);
          want[at].clear();
          break;
        case 1: {
          const auto to = (slot + 1 + static_cast<int>(draw.below(kSeqs - 1))) % kSeqs;
          index.fork(slot, to);
          want[static_cast<size_t>(to)] = want[at];
          break;
        }
        default: {
          const int begin = index.end(slot);
          const int end = std::min(600, begin + 1 + static_cast<int>(draw.below(150)));
          written.write(index.extend(slot, end), round);
          for (int t = begin; t < end; ++t) want[at].push_back(100000 * round + t);
        }
      }
      for (int s = 0; s < kSeqs; ++s)
        REQUIRE(written.read(index, s) == want[static_cast<size_t>(s)]);
    }
  }
}
