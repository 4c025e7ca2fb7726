#include <array>
#include <cmath>
#include <limits>

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

const std::vector<SeqShape> kRagged = {{0, 40},   {1023, 1}, {0, 0},  {0, 1},    {64, 3},
                                       {2100, 5}, {300, 0},  {63, 8}, {1500, 1}, {0, 0}};

}  // namespace

TEST_SUITE("gpu/kernels/attention_few_rows") {
  TEST_CASE("bf16 agrees with the reference") { check_grid(DType::bf16, 3); }
  TEST_CASE("f32 agrees with the reference") { check_grid(DType::f32, 5); }

  TEST_CASE("ragged batches: different bases, empty sequences, many rows beside one") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int d : {64, 128, 80})
        for (const int group : {1, 3, 4})
          for (int mask = 0; mask < kMasks; ++mask) {
            if (d == 80 && mask % 2 == 0) continue;
            AttentionSpec s{
                .d = d, .group = group, .kv_heads = 2, .seqs = kRagged, .dtype = dtype, .seed = 5};
            apply_mask(s, mask);
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

  TEST_CASE("more queries of a group than a tile takes, and more sequences than a warp") {
    AttentionSpec s{
        .d = 128, .group = 71, .kv_heads = 1, .seqs = {{700, 3}, {5, 1}}, .dtype = DType::bf16};
    check_against_reference(s);
    s.d = 64, s.group = 4, s.seqs = {{900, 50}, {0, 64}};
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
    for (const int d : {80, 64, 128})
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
        device.run(memory);
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
    const ops::AttentionBounds bounds{24, 48, 3456, 16, 4, 128};
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
    const AttentionFewRowsBounds bounds{3, 9, 3000, 8, 2, 64};
    const FewRowsMemory memory(bounds);
    for (const std::vector<SeqShape>& seqs : {std::vector<SeqShape>{{2990, 9}},
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
    AttentionFewRowsBounds more = bounds;
    const auto bytes = [&] { return cuda_table().attention_few_rows_workspace_bytes(more); };
    size_t before = bytes();
    for (int* bound : {&more.max_seqs, &more.max_rows_a_seq, &more.max_tokens})
      for (int i = 0; i < 5; ++i) {
        *bound *= 2;
        CHECK(bytes() >= before);
        before = bytes();
      }
  }
}

TEST_SUITE("gpu/kernels/merge_states") {
  TEST_CASE("agrees with the CPU for any number of parts, types and empty parts") {
    for (const DType part_type : {DType::f32, DType::bf16})
      for (const DType out_type : {DType::f32, DType::bf16})
        for (const int n_parts : {1, 2, 3, 33, kMaxMergeParts})
          for (const int d : {2, 80, 128}) {
            constexpr int kRowCount = 5, kHeads = 3;
            const auto n = static_cast<size_t>(kRowCount * kHeads),
                       values = n * static_cast<size_t>(d);
            PhiloxStream stream(static_cast<uint64_t>(n_parts), static_cast<uint32_t>(d));
            std::vector<ActBuffer> o;
            std::vector<Buffer<float>> lse;
            std::vector<DeviceBuffer> device_o, device_lse;
            std::vector<const void*> host_o_at, o_at;
            std::vector<const float*> host_lse_at, lse_at;
            for (int i = 0; i < n_parts; ++i) {
              fill(o.emplace_back(part_type, values), stream, 1.0f);
              fill(lse.emplace_back(n), stream, 6.0f);
              for (size_t at = 0; at < n; ++at)  // one row is empty in all parts
                if (at == 4 || stream.uniform() < 0.2) {
                  lse.back()[at] = -kInf;
                  for (size_t c = 0; c < static_cast<size_t>(d); ++c)
                    o.back().set(at * static_cast<size_t>(d) + c, std::nanf(""));
                }
            }
            for (int i = 0; i < n_parts; ++i) {
              const auto at = static_cast<size_t>(i);
              device_o.push_back(on_device(o[at]));
              device_lse.push_back(on_device(lse[at]));
              host_o_at.push_back(o[at].data());
              host_lse_at.push_back(lse[at].data());
              o_at.push_back(device_o.back().raw());
              lse_at.push_back(device_lse.back().as<float>());
            }
            ActBuffer want(out_type, values), got(out_type, values);
            ActBuffer want_lse(DType::f32, n), got_lse(DType::f32, n);
            MergeStatesParams p{want.data(),
                                want_lse.f32.data(),
                                host_o_at.data(),
                                host_lse_at.data(),
                                part_type,
                                out_type,
                                n_parts,
                                kHeads,
                                d};
            merge_states(p, {0, kRowCount});
            const DeviceBuffer out(values * dtype_bytes(out_type)), out_lse(n * 4);
            p.out = out.raw();
            p.lse = out_lse.as<float>();
            p.o = o_at.data();
            p.part_lse = lse_at.data();
            cuda_table().merge_states(p, kRowCount, queue().stream());
            cuda::launched("merge_states", queue().stream());
            read_back(out, got);
            read_back(out_lse, got_lse);
            CAPTURE(n_parts);
            CAPTURE(d);
            // Weights of sum 1 and values of at most 1, one rounding a part, and that of out.
            const double tolerance = spacing(out_type) + n_parts * spacing(DType::f32);
            REQUIRE_CLOSE(got, want, ([&](size_t) { return tolerance; }));
            for (size_t at = 0; at < n; ++at) {
              const bool same =
                  want_lse.get(at) == got_lse.get(at) ||
                  std::abs(want_lse.get(at) - got_lse.get(at)) <= 16 * spacing(DType::f32);
              REQUIRE(same);
            }
          }
  }

  TEST_CASE("out may lie over a part") {
    AttentionSpec s{.d = 80, .group = 3, .kv_heads = 2, .seqs = {{300, 6}}, .seed = 9};
    AttentionCase whole(s);
    whole.run_ref({0, 6});
    const auto part = [&](int lo, int hi) {
      AttentionSpec half = s;
      half.key_lo = lo, half.key_hi = hi;
      AttentionCase c(half);
      c.run_ref({0, 6});
      return std::pair{DeviceBuffer(c.out_bytes()), DeviceBuffer(c.lse())};
    };
    const auto a = part(0, 120), b = part(120, INT_MAX);
    const void* o[] = {a.first.raw(), b.first.raw()};
    const float* lse[] = {a.second.as<float>(), b.second.as<float>()};
    cuda_table().merge_states(
        {b.first.raw(), b.second.as<float>(), o, lse, DType::f32, DType::f32, 2, 6, 80}, 6,
        queue().stream());
    cuda::launched("merge_states", queue().stream());
    const auto out = b.first.vector<float>(), out_lse = b.second.vector<float>();
    for (size_t i = 0; i < out.size(); ++i) REQUIRE(std::abs(out[i] - whole.out(i)) <= 4 * 0x1p-23);
    for (size_t i = 0; i < out_lse.size(); ++i)
      REQUIRE(std::abs(out_lse[i] - whole.lse()[i]) <= 16 * 0x1p-23);
  }
}
