#include <array>
#include <cmath>
#include <limits>

#include "base/convert.h"
#include "gpu/attention_on_device.h"
#include "ops/attention.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void check_against_reference(const AttentionSpec& spec) {
  AttentionCase c(spec);
  const AttentionOnDevice device(c);
  device.run();
  compare(device, c, c.params());
}

constexpr std::array kDims = {64, 128, 16, 32, 80, 96, 256};
constexpr std::array kGroups = {4, 1, 8, 2, 3, 7, 16};
constexpr std::array kLengths = {1, 63, 64, 65, 511, 512, 513, 1023, 1025, 3000};
constexpr std::array kRows = {1, 2, 5, 16, 17, 3, 33, 64};

void check_grid(DType dtype, int stride) {
  uint32_t n = 0;
  for (const int d : kDims)
    for (const int g : kGroups)
      for (const int length : kLengths) {
        ++n;
        const bool fast = dtype == DType::bf16 && (d == 64 || d == 128);
        if (!fast && n % static_cast<uint32_t>(stride) != 0) continue;
        AttentionSpec s{
            .d = d, .group = g, .kv_heads = n % 3 == 0 ? 2 : 1, .dtype = dtype, .seed = n};
        s.out_dtype = n % 2 == 0 ? DType::f32 : dtype;
        s.seqs = {{length, kRows[n % kRows.size()]}};
        if (length > 1000) s.seqs[0].rows = 1 + s.seqs[0].rows % 6;
        apply_mask(s, static_cast<int>((n / 8 + n) % kMasks));
        check_against_reference(s);
      }
}

/// The kernel ahead of attention in a layer: it writes q and the new rows' K and V of a case, here
/// as the case has them, or NaN.
class RowWriter {
 public:
  RowWriter(const AttentionOnDevice& device, AttentionCase& c) : device_(device) {
    const AttentionParams& p = device.host();
    const size_t q_values = c.row_values(), d = static_cast<size_t>(p.head_dim),
                 kv_heads = static_cast<size_t>(p.n_kv_heads);
    std::vector<bf16> qkv;
    std::vector<int32_t> pages, in_page;
    for (int s = 0; s < p.n_seqs; ++s)
      for (int row = p.row_begin[s]; row < p.row_begin[s + 1]; ++row) {
        const int slot =
            p.base[s] + (p.tentative == nullptr ? 0 : p.tentative[s]) + row - p.row_begin[s];
        pages.push_back(p.page_table[s * p.max_pages + slot / kPageTokens]);
        in_page.push_back(slot % kPageTokens);
        const bf16* q = static_cast<const bf16*>(p.q) + static_cast<size_t>(row) * q_values;
        qkv.insert(qkv.end(), q, q + q_values);
        for (const void* pool : {p.k_pool, p.v_pool})
          for (size_t h = 0; h < kv_heads; ++h) {
            const size_t at = (static_cast<size_t>(pages.back()) * kv_heads + h) * kPageTokens +
                              static_cast<size_t>(in_page.back());
            const bf16* from = static_cast<const bf16*>(pool) + at * d;
            qkv.insert(qkv.end(), from, from + d);
          }
      }
    n_rows_ = static_cast<int>(pages.size());
    values_.emplace_back(qkv);
    values_.emplace_back(std::vector<bf16>(qkv.size(), to_bf16(std::nanf(""))));
    ints_.emplace_back(pages);
    ints_.emplace_back(in_page);
    ints_.emplace_back(std::vector<int32_t>(pages.size(), 0));
    angles_.emplace_back(std::vector<float>(d / 2, 1.0f));  // no rotation
    angles_.emplace_back(std::vector<float>(d / 2, 0.0f));
  }
  void run(bool nan) const {
    const AttentionParams& p = device_.params();
    cuda_table().rope_kv(
        {const_cast<void*>(p.q), const_cast<void*>(p.k_pool), const_cast<void*>(p.v_pool),
         values_[nan].raw(), angles_[0].as<float>(), angles_[1].as<float>(), ints_[2].as<int32_t>(),
         ints_[0].as<int32_t>(), ints_[1].as<int32_t>(), n_rows_, p.n_heads, p.n_kv_heads,
         p.head_dim, DType::bf16},
        queue().stream());
    cuda::launched("rope_kv", queue().stream());
  }

 private:
  const AttentionOnDevice& device_;
  std::vector<DeviceBuffer> values_, ints_, angles_;
  int n_rows_ = 0;
};

const std::vector<SeqShape> kRagged = {{0, 40},   {1023, 1}, {0, 0},  {0, 1},    {64, 3},
                                       {2100, 5}, {300, 0},  {63, 8}, {1500, 1}, {0, 0}};

}  // namespace

TEST_SUITE("gpu/kernels/attention_few_rows") {
  TEST_CASE("bf16 agrees with the reference") { check_grid(DType::bf16, 3); }
  TEST_CASE("f32 agrees with the reference") { check_grid(DType::f32, 5); }

  TEST_CASE("ragged batches: different bases, empty sequences, many rows beside one") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 128, 80, 256})
        for (const int group : {1, 3, 4})
          for (int mask = 0; mask < kMasks; ++mask) {
            if (d == 80 && mask % 2 == 0) continue;
            AttentionSpec s{
                .d = d, .group = group, .kv_heads = 2, .seqs = kRagged, .dtype = dtype, .seed = 5};
            apply_mask(s, mask);
            check_against_reference(s);
          }
  }

  TEST_CASE("rows behind tentative ones, in trees and chains, beside sequences without any") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 128, 80, 256})
        for (const int group : {1, 4})
          for (int mask = 0; mask < kMasks; ++mask) {
            if (d == 80 && mask % 2 == 0) continue;
            AttentionSpec s{
                .d = d, .group = group, .kv_heads = 2, .seqs = kRagged, .dtype = dtype, .seed = 7};
            add_tentative(s, {1, 40, 0, 70, 7, 200, 130});
            apply_mask(s, mask);
            check_against_reference(s);
            s.seqs = {{3000, 9, 33}};
            check_against_reference(s);
          }
  }

  TEST_CASE("lengths around the borders of pages and chunks, alone and in a batch") {
    for (const int pages : {2, 8, 16, 17, 33})
      for (const int off : {-2, -1, 0, 1}) {
        AttentionSpec s{.d = 128, .group = 4, .kv_heads = 1, .dtype = DType::bf16};
        s.seqs = {{pages * kPageTokens + off, 1}};
        check_against_reference(s);
        s.seqs.push_back({4 * kPageTokens + off, 3});
        check_against_reference(s);
      }
  }

  TEST_CASE("long sequences in large and small chunks, in batches of a warp's lanes and of more") {
    for (const int d : {128, 64, 256})
      for (const bool tree : {false, true})
        for (const int n_seqs : {18, 40}) {
          AttentionSpec s{.d = d, .group = 2, .kv_heads = 8, .dtype = DType::bf16};
          s.tree = tree;
          for (int i = 0; i < n_seqs; ++i) {
            const int long_base = (d == 128 ? 1087 : 2304) + i * 29, rows = i % 3 == 0 ? 3 : 1;
            s.seqs.push_back({i % 6 == 1 ? long_base : i % 5, rows});
          }
          check_against_reference(s);
        }
  }

  TEST_CASE("each number of rows up to 16 over thousands of keys, in groups of each size") {
    for (const int d : {64, 128})
      for (const int group : {1, 3, 4, 8})
        for (int rows = 1; rows <= 16; ++rows)
          check_against_reference({.d = d,
                                   .group = group,
                                   .kv_heads = group == 3 ? 3 : 1,
                                   .seqs = {{4700 + 7 * rows, rows}},
                                   .dtype = DType::bf16,
                                   .out_dtype = DType::bf16,
                                   .seed = static_cast<uint32_t>(rows)});
  }

  TEST_CASE("trees of hundreds of nodes, beside small ones") {
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const int d : {128, 256})
        for (const int group : {1, 4}) {
          AttentionSpec s{.d = d, .group = group, .kv_heads = 1, .dtype = dtype};
          s.tree = true;
          for (const std::vector<SeqShape>& seqs :
               {std::vector<SeqShape>{{300, 128}}, {{130, 200}, {64, 1}, {0, 65}}, {{1100, 200}}}) {
            s.seqs = seqs;
            check_against_reference(s);
          }
        }
  }

  TEST_CASE("more queries of a group than a tile takes, and more sequences than a warp") {
    AttentionSpec s{
        .d = 128, .group = 71, .kv_heads = 1, .seqs = {{700, 3}, {5, 1}}, .dtype = DType::bf16};
    check_against_reference(s);
    s.d = 256;
    check_against_reference(s);
    s.group = 4, s.seqs = {{900, 50}, {0, 64}};
    check_against_reference(s);
    s.d = 64;
    check_against_reference(s);
    s.group = 2, s.seqs.clear();
    for (int i = 0; i < 70; ++i) s.seqs.push_back({i * 37 % 400, i % 4});
    check_against_reference(s);
    s.dtype = DType::f32;
    check_against_reference(s);
  }

  TEST_CASE("head dimensions that fill no vector: 2, 6, 34, 130") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {2, 6, 34, 130})
        check_against_reference({.d = d,
                                 .group = 5,
                                 .kv_heads = 2,
                                 .seqs = {{1100, 9}, {5, 12}},
                                 .dtype = dtype,
                                 .seed = 6});
  }

  TEST_CASE("an empty set of keys gives out = 0 and lse = -inf") {
    for (const int d : {80, 64, 128, 256})
      for (const bool tree : {false, true}) {
        AttentionSpec s{
            .d = d, .group = 4, .kv_heads = 1, .seqs = {{500, 20}}, .dtype = DType::bf16};
        s.key_lo = 510;  // rows 0..9 of a chain see nothing
        s.tree = tree;
        check_against_reference(s);
        s.key_lo = 5000;  // nobody sees anything
        AttentionCase c(s);
        const AttentionOnDevice device(c);
        device.run();
        const std::vector<float> lse = device.lse(), out = device.out();
        CHECK(std::all_of(lse.begin(), lse.end(), [](float x) { return x == -kInf; }));
        CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == 0.0f; }));
      }
  }

  TEST_CASE("each sequence may have a first key of its own; lse may be null") {
    for (const bool tree : {false, true})
      for (const int d : {64, 80}) {
        AttentionSpec s{.d = d,
                        .group = 2,
                        .kv_heads = 2,
                        .seqs = {{900, 2}, {70, 1}, {300, 4}},
                        .dtype = DType::bf16};
        s.tree = tree;
        AttentionCase c(s);
        AttentionOnDevice device(c);
        const std::vector<int32_t> key_lo = {130, 0, 302};
        const DeviceBuffer own(key_lo);
        device.params().seq_key_lo = own.as<int32_t>();
        device.run();
        AttentionParams reference = c.params();
        reference.seq_key_lo = key_lo.data();
        compare(device, c, reference);
        const auto with_lse = device.out_bytes();
        device.params().lse = nullptr;
        device.run();
        CHECK(device.out_bytes() == with_lse);
      }
  }

  TEST_CASE("the same bits on every run and whatever the other sequences hold") {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      AttentionSpec s{.d = 128, .group = 4, .kv_heads = 2, .dtype = dtype, .out_dtype = dtype};
      s.seqs = {{1500, 2}, {2600, 2}, {100, 2}, {2000, 2}};
      AttentionCase c(s);
      AttentionOnDevice device(c);
      const FewRowsMemory memory(device.bounds());
      device.run(memory);
      const auto first = device.out_bytes();
      const auto first_lse = device.lse();
      for (int i = 0; i < 20; ++i) {
        device.run(memory, i % 2 == 0);
        REQUIRE(device.out_bytes() == first);
        REQUIRE(device.lse() == first_lse);
      }
      const size_t row_bytes = c.row_values() * dtype_bytes(dtype);
      for (const std::vector<int32_t>& base :
           {std::vector<int32_t>{0, 2600, 3, 17}, {1500, 2600, 1, 2000}, {60, 2600, 99, 1}}) {
        device.set_base(base);
        device.run(memory);
        const auto out = device.out_bytes();
        CHECK(std::equal(out.begin() + static_cast<ptrdiff_t>(2 * row_bytes),
                         out.begin() + static_cast<ptrdiff_t>(4 * row_bytes),
                         first.begin() + static_cast<ptrdiff_t>(2 * row_bytes)));
      }
    }
  }

  TEST_CASE("Hopper's body and the portable one give the same bits") {
    if (cuda::gpu().isa != cuda::GpuIsa::hopper) return;  // the reference has checked the other
    for (const int d : {64, 128, 256})
      for (const int rows : {1, 5, 30})
        for (const bool tree : {false, true}) {
          AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .dtype = DType::bf16};
          s.out_dtype = DType::bf16;
          s.seqs = {{3000, rows}, {0, rows}, {700, 1}};
          s.tree = tree;
          AttentionCase c(s);
          const AttentionOnDevice device(c);
          const FewRowsMemory memory(device.bounds());
          device.run(memory, false, cuda::GpuIsa::hopper);
          const auto want = device.out_bytes();
          const auto want_lse = device.lse();
          device.run(memory, false, cuda::GpuIsa::portable);
          CAPTURE(s.text());
          CHECK(device.out_bytes() == want);
          CHECK(device.lse() == want_lse);
        }
  }

  TEST_CASE("settled keys are read ahead of the kernel that writes the new ones, those after it") {
    const std::vector<std::vector<SeqShape>> batches = {
        {{31, 1}},       {{32, 1}},
        {{63, 2}},       {{64, 1}},
        {{0, 1}},        {{100, 5}},
        {{999, 1}},      {{6000, 1}},
        {{9000, 5}},     {{700, 3}, {2500, 3}, {64, 3}},
        {{100, 5, 7}},   {{60, 2, 70}},
        {{9000, 5, 30}}, {{700, 3, 1}, {2500, 3, 90}, {64, 3}}};
    for (const int d : {64, 128, 256})
      for (const bool tree : {false, true})
        for (const auto& seqs : batches) {
          AttentionSpec s{.d = d, .group = 4, .kv_heads = 2, .seqs = seqs, .dtype = DType::bf16};
          s.tree = tree;
          AttentionCase c(s);
          const AttentionOnDevice device(c);
          const RowWriter writer(device, c);
          const FewRowsMemory memory(device.bounds());
          const cuda::Graph layers(queue(), [&] {
            for (int i = 0; i < 4; ++i) {
              writer.run(true);
              device.run(memory, i > 0);
              writer.run(false);
              device.run(memory, true);
            }
          });
          layers.launch(queue());
          compare(device, c, c.params());
        }
  }

  TEST_CASE("one graph serves growing lengths") {
    for (const int d : {128, 80}) {
      AttentionSpec s{
          .d = d, .group = 4, .kv_heads = 2, .seqs = {{2100, 3}, {700, 1}}, .dtype = DType::bf16};
      AttentionCase c(s);
      AttentionOnDevice device(c, 5, 4096);
      const FewRowsMemory memory(device.bounds());
      const cuda::Graph graph(queue(), [&] { device.run(memory); });
      for (const std::vector<int32_t>& base :
           {std::vector<int32_t>{0, 0}, {1, 63}, {62, 64}, {511, 1}, {1030, 512}, {2100, 700}}) {
        device.set_base(base);
        graph.launch(queue());
        AttentionParams reference = c.params();
        reference.base = base.data();
        compare(device, c, reference);
      }
    }
  }

  TEST_CASE("a workspace serves steps of few sequences and of many in turn") {
    const auto spec = [](std::vector<SeqShape> seqs) {
      return AttentionSpec{
          .d = 128, .group = 4, .kv_heads = 4, .seqs = std::move(seqs), .dtype = DType::bf16};
    };
    std::vector<SeqShape> seqs(23, {150, 2});
    seqs.push_back({3400, 2});  // its counters lie last
    AttentionCase one(spec({{2047, 1}})), many(spec(seqs));
    const Device gpu{Device::Kind::cuda, 0};
    const AttentionBounds bounds{.max_seqs = 24,
                                 .max_rows = 48,
                                 .max_tokens = 3456,
                                 .n_heads = 16,
                                 .n_kv_heads = 4,
                                 .head_dim = 128,
                                 .multiprocessors = cuda::gpu().multiprocessors};
    const DeviceBuffer memory(
        std::vector<unsigned char>(ops::attention_workspace_bytes(gpu, bounds)));
    const auto workspace = ops::attention_workspace(gpu, bounds, memory.raw());
    for (int turn = 0; turn < 2; ++turn)
      for (AttentionCase* c : {&one, &many}) {
        const AttentionOnDevice device(*c);
        const AttentionParams& p = device.params();
        const int64_t rows = c->n_rows(), pages = int64_t{p.n_seqs} * p.max_pages;
        const auto at = [&](const void* x) { return const_cast<void*>(x); };
        const ops::StepArrays step{.device = gpu,
                                   .n_seqs = p.n_seqs,
                                   .n_rows = c->n_rows(),
                                   .max_rows_a_seq = device.max_rows(),
                                   .max_pages = p.max_pages,
                                   .row_begin = p.row_begin,
                                   .base = p.base,
                                   .page_table = p.page_table};
        const ops::AttentionArgs args{.out = Tensor(p.out, p.out_dtype, {rows, 16, 128}, gpu),
                                      .lse = p.lse,
                                      .q = Tensor(at(p.q), p.dtype, {rows, 16, 128}, gpu),
                                      .k = Tensor(at(p.k_pool), p.dtype, {pages, 4, 64, 128}, gpu),
                                      .v = Tensor(at(p.v_pool), p.dtype, {pages, 4, 64, 128}, gpu),
                                      .step = step,
                                      .key_hi = p.key_hi,
                                      .scale = p.scale};
        ops::attention(args, workspace, queue().stream());
        compare(device, *c, c->params());
      }
  }

  TEST_CASE("memory for bounds serves every call within them") {
    const AttentionBounds bounds{3, 9, 3000, 8, 2, 64, cuda::gpu().multiprocessors, 90};
    const FewRowsMemory memory(bounds);
    for (const std::vector<SeqShape>& seqs : {std::vector<SeqShape>{{2990, 9}},
                                              {{2900, 90}},
                                              {{2970, 30}, {1, 1}, {2500, 30}},
                                              {{10, 9}, {2500, 1}, {0, 4}},
                                              {{2999, 1}, {2999, 1}, {2999, 1}},
                                              {{5, 1}}})
      for (const DType dtype : {DType::bf16, DType::f32}) {
        AttentionSpec s{.d = 64, .group = 4, .kv_heads = 2, .seqs = seqs, .dtype = dtype};
        AttentionCase c(s);
        const AttentionOnDevice device(c);
        device.run(memory);
        compare(device, c, c.params());
      }
    AttentionBounds more = bounds;
    const auto bytes = [&] { return attention_few_rows_workspace_bytes(more); };
    size_t before = bytes();
    for (int* bound : {&more.max_seqs, &more.max_rows, &more.max_tokens, &more.max_tree_rows})
      for (int i = 0; i < 5; ++i) {
        *bound *= 2;
        CHECK(bytes() >= before);
        before = bytes();
      }
  }
}
