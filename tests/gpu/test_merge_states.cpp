#include <cmath>
#include <limits>

#include "gpu/attention_on_device.h"

using namespace tandem;
using namespace tandem::test;

namespace {
constexpr float kInf = std::numeric_limits<float>::infinity();
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
