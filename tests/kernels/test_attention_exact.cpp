#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "attention_case.h"
#include "base/convert.h"

using namespace tandem;
using namespace tandem::test;

// What the model relies on: chunked prefill, trees by levels, ragged batches, any number of threads
// and rollback give the plain run's bits. It holds for bf16 as well, because lanes never mix and
// splits lie at absolute slots.

namespace {

struct Result {
  std::vector<unsigned char> out;
  std::vector<float> lse;
  bool operator==(const Result& o) const {
    return out == o.out && lse.size() == o.lse.size() &&
           std::memcmp(lse.data(), o.lse.data(), lse.size() * sizeof(float)) == 0;
  }
};

Result run_whole(AttentionCase& c, const AttentionKernel& kernel, int threads) {
  c.run(kernel, threads);
  return {c.out_bytes(), c.lse()};
}

/// The rows of a one-sequence case in chunks: rows before a chunk count as committed, or tentative.
Result run_chunked(AttentionCase& c, const AttentionKernel& kernel, const std::vector<int>& chunks,
                   int threads, bool tentative = false) {
  const AttentionParams whole = c.params();
  const size_t row_bytes = c.row_values() * dtype_bytes(whole.dtype),
               out_bytes = c.row_values() * dtype_bytes(whole.out_dtype);
  for (int done = 0, i = 0; done < c.n_rows(); ++i) {
    const int n = std::min(chunks[static_cast<size_t>(i) % chunks.size()], c.n_rows() - done);
    const int32_t row_begin[2] = {0, n}, before[1] = {done}, base[1] = {whole.base[0] + done};
    AttentionParams p = whole;
    p.row_begin = row_begin;
    const auto at = static_cast<size_t>(done);
    if (tentative)
      p.tentative = before;
    else
      p.base = base;
    if (p.tree_mask != nullptr) {
      p.tree_mask += at * static_cast<size_t>(p.mask_words);
      p.pos += at;
    }
    p.q = static_cast<const char*>(whole.q) + at * row_bytes;
    p.out = static_cast<char*>(whole.out) + at * out_bytes;
    p.lse = whole.lse + at * static_cast<size_t>(whole.n_heads);
    run_attention(kernel, p, threads);
    done += n;
  }
  return {c.out_bytes(), c.lse()};
}

std::vector<AttentionSpec> specs(DType dtype) {
  AttentionSpec plain{.d = 64, .group = 3, .kv_heads = 2, .seqs = {{0, 150}}, .dtype = dtype};
  AttentionSpec windowed = plain, far = plain, odd = plain;
  windowed.seqs = {{960, 130}}, windowed.window = 100, windowed.sinks = 4;
  far.seqs = {{2000, 90}};
  odd.d = 80, odd.group = 7, odd.kv_heads = 1, odd.seqs = {{980, 70}};
  for (AttentionSpec* s : {&plain, &windowed, &far, &odd}) s->out_dtype = DType::f32;
  return {plain, windowed, far, odd};
}

template <class Check>
void for_all(const Check& check) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const AttentionVariant& v : attention_variants(dtype))
      for (const AttentionSpec& s : specs(dtype)) {
        INFO(dtype_name(dtype), " ", isa_name(v.isa), " ", s.text());
        check(s, *v.kernel);
      }
}

}  // namespace

TEST_SUITE("kernels/attention bits") {
  TEST_CASE("chunks of any size give the bits of one call") {
    for_all([](const AttentionSpec& s, const AttentionKernel& kernel) {
      AttentionCase a(s), b(s);
      const Result whole = run_whole(a, kernel, 1);
      for (const auto& chunks : std::vector<std::vector<int>>{{1}, {7}, {64}, {1, 33, 17, 2}})
        CHECK(run_chunked(b, kernel, chunks, 2) == whole);
    });
  }

  TEST_CASE("rows behind tentative ones have the bits of one call, in chains and trees") {
    for_all([](AttentionSpec s, const AttentionKernel& kernel) {
      for (const bool tree : {false, true}) {
        s.tree = tree;
        AttentionCase a(s), b(s);
        const Result whole = run_whole(a, kernel, 1);
        for (const auto& chunks : std::vector<std::vector<int>>{{1}, {7}, {64}, {1, 33, 17, 2}})
          CHECK(run_chunked(b, kernel, chunks, 2, true) == whole);
      }
    });
  }

  TEST_CASE("calls of few and of many queries give the same bits, around every tile and block") {
    // Each query is a row. 16 is the most of few_queries.h; 8, 16, 24, 32 and 64 fill vectors and
    // groups of them, 96 and 128 blocks.
    const std::vector<int> sizes = {1,  2,  3,  4,  5,  6,  7,  8,  9,  11, 12, 13, 15,  16,
                                    17, 23, 24, 25, 31, 33, 48, 63, 65, 95, 96, 97, 127, 129};
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& v : attention_variants(dtype))
        for (int d : {3, 34, 72, 80}) {
          AttentionSpec s{.d = d, .seqs = {{50, 130}}, .dtype = dtype, .out_dtype = DType::f32};
          if (d == 72) s.window = 60, s.sinks = 3;
          if (d == 80) s.tree = true;
          AttentionCase a(s), b(s);
          const Result whole = run_whole(a, *v.kernel, 1);
          for (int size : sizes) {
            INFO(dtype_name(dtype), " ", isa_name(v.isa), " ", s.text(), " in calls of ", size);
            CHECK(run_chunked(b, *v.kernel, {size}, 1, s.tree) == whole);
          }
        }
  }

  TEST_CASE("any number of threads gives the same bits") {
    for_all([](const AttentionSpec& s, const AttentionKernel& kernel) {
      AttentionCase a(s);
      const Result one = run_whole(a, kernel, 1);
      for (int threads : {2, 3, 16}) CHECK(run_whole(a, kernel, threads) == one);
    });
  }

  TEST_CASE("a decode step divided among many threads gives the bits of one") {
    // Partial states of few queries and of many (rows times group), of even and odd head_dims.
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& v : attention_variants(dtype))
        for (const auto& [d, group, rows] : {std::array{128, 4, 1}, {5, 4, 3}, {5, 7, 2}}) {
          AttentionSpec s{.d = d, .group = group, .kv_heads = 2, .seqs = {{9000, rows}}};
          s.dtype = dtype, s.out_dtype = DType::f32;
          AttentionCase a(s);
          const Result one = run_whole(a, *v.kernel, 1);
          for (int threads : {4, 16}) {
            const AttentionParams p = a.params();
            std::vector<char> workspace(attention_cpu_workspace_bytes({.max_seqs = 1,
                                                                       .max_rows = rows,
                                                                       .max_tokens = 9000 + rows,
                                                                       .n_heads = p.n_heads,
                                                                       .n_kv_heads = p.n_kv_heads,
                                                                       .head_dim = d,
                                                                       .threads = threads}));
            CHECK(attention_plan(p, *v.kernel, threads, workspace.data()).n_merges ==
                  2);  // it was divided
            CHECK(run_whole(a, *v.kernel, threads) == one);
          }
        }
  }

  TEST_CASE("a long decode step is cut into parts that even out threads of unequal speed") {
    constexpr int kTokens = 98304, kHeads = 8;
    const std::vector<int32_t> pages(kTokens / kPageTokens);
    const int32_t row_begin[] = {0, 1}, base[] = {kTokens - 1};
    AttentionParams p{};
    p.page_table = pages.data();
    p.row_begin = row_begin;
    p.base = base;
    p.n_seqs = 1;
    p.max_pages = static_cast<int>(pages.size());
    p.n_heads = 4 * kHeads;
    p.n_kv_heads = kHeads;
    p.head_dim = 128;
    for (const int threads : {4, 16}) {
      std::vector<char> workspace(attention_cpu_workspace_bytes({.max_seqs = 1,
                                                                 .max_rows = 1,
                                                                 .max_tokens = kTokens,
                                                                 .n_heads = p.n_heads,
                                                                 .n_kv_heads = kHeads,
                                                                 .head_dim = 128,
                                                                 .threads = threads}));
      const AttentionKernel& kernel = *attention_variants(DType::bf16).front().kernel;
      const AttentionPlan plan = attention_plan(p, kernel, threads, workspace.data());
      int splits = 0, most = 0;
      for (int i = 0; i < plan.n_tasks; ++i) {
        const int n = plan.tasks[i].split_end - plan.tasks[i].split_begin;
        splits += n;
        most = std::max(most, n);
      }
      CHECK(splits == kTokens / kSplitTokens * kHeads);
      CHECK(most * threads * 20 <= splits);
    }
  }

  TEST_CASE("batch mates leave no trace") {
    for (DType dtype : {DType::f32, DType::bf16})
      for (const AttentionVariant& v : attention_variants(dtype)) {
        AttentionSpec s{.d = 96, .group = 3, .kv_heads = 2, .dtype = dtype};
        s.out_dtype = DType::f32;
        s.seqs = {{70, 33}, {0, 130}, {1500, 1}, {1023, 2}};
        AttentionCase batch(s);
        const Result all = run_whole(batch, *v.kernel, 2);
        const AttentionParams p = batch.params();
        for (int i = 0; i < p.n_seqs; ++i) {
          AttentionParams alone = p;
          const int first = p.row_begin[i], n = p.row_begin[i + 1] - first;
          const int32_t row_begin[2] = {0, n};
          std::vector<float> out(static_cast<size_t>(n) * batch.row_values()),
              lse(static_cast<size_t>(n * p.n_heads));
          alone.n_seqs = 1;
          alone.row_begin = row_begin;
          alone.base = p.base + i;
          alone.page_table = p.page_table + i * p.max_pages;
          alone.q = static_cast<const char*>(p.q) +
                    static_cast<size_t>(first) * batch.row_values() * dtype_bytes(dtype);
          alone.out = out.data();
          alone.lse = lse.data();
          run_attention(*v.kernel, alone, 1);
          const size_t at = static_cast<size_t>(first) * batch.row_values();
          CHECK(std::memcmp(out.data(), all.out.data() + at * sizeof(float),
                            out.size() * sizeof(float)) == 0);
          CHECK(std::memcmp(lse.data(), all.lse.data() + first * p.n_heads,
                            lse.size() * sizeof(float)) == 0);
        }
      }
  }
}
