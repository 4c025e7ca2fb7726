#include <algorithm>

#include "gpu/device_buffer.h"
#include "kernels/elementwise_case.h"
#include "kernels/rope_case.h"
#include "kernels/row_norms_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr int kWidths[] = {1, 2, 7, 15, 16, 17, 64, 65, 127, 192, 1009, 4096};

void launched(const char* operation) { cuda::launched(operation, queue().stream()); }

}  // namespace

TEST_SUITE("gpu/kernels/rms_norm") {
  TEST_CASE("agrees with the reference") {
    for (const DType act : kActs)
      for (const int dim : {1, 7, 64, 192, 1009, 2048, 2052, 4096, 8192, 16384, 20480, 20481})
        for (const NormForm& form : kNormForms)
          for (const size_t offset : {0u, 1u}) {
            if (form.adds && act == DType::bf16) continue;
            CAPTURE(dtype_name(act));
            CAPTURE(dim);
            CAPTURE(form.scale);
            CAPTURE(offset);
            RmsNormCase c(act, dim, offset, form);
            ActBuffer got = c.output(offset);
            RmsNormParams p = c.params(got);
            const DeviceBuffer out = on_device(got), x = on_device(c.x),
                               weight = on_device(c.weight);
            p.out = out.raw();
            p.x = x.as<float>();
            if (form.weighted) p.weight = weight.as<float>();
            cuda_table().rms_norm(p, queue().stream());
            launched("rms_norm");
            read_back(out, got);
            c.require_close(got);
          }
  }

  TEST_CASE("row norms agree with the reference, in a graph too") {
    for (const DType act : kActs)
      for (const int head : {2, 7, 16, 130})
        for (const size_t offset : {0u, 1u}) {
          CAPTURE(dtype_name(act));
          CAPTURE(head);
          RowNormsCase c(act, head, offset);
          ActBuffer got(act, c.in.size(), offset);
          Buffer<float> squares(2 * c.kRows);
          RowNormsParams p = c.params(got, squares);
          const DeviceBuffer in = on_device(c.in), out = on_device(got),
                             sums(squares.size() * sizeof(float)), q_norm = on_device(c.q_norm),
                             k_norm = on_device(c.k_norm);
          p.in = in.raw();
          p.out = out.raw();
          p.squares = sums.as<float>();
          p.q_norm = q_norm.as<float>();
          p.k_norm = k_norm.as<float>();
          require_same_in_graph(out, [&] {
            cuda_table().qk_squares(p, queue().stream());
            cuda_table().row_norms(p, queue().stream());
          });
          c.require_squares_close(sums.vector<float>().data());
          read_back(out, got);
          c.require_close(got);
          p.out = in.raw();
          cuda_table().row_norms(p, queue().stream());
          CHECK(in.vector<unsigned char>() == out.vector<unsigned char>());
        }
  }

  TEST_CASE("a row does not depend on the rows computed with it, and out may be x") {
    constexpr int kRows = 300, kDim = 4096;
    PhiloxStream stream(2);
    Buffer<float> x(kRows * kDim), weight(kDim);
    fill(x, stream, 1.0f);
    fill(weight, stream, 1.0f);
    const DeviceBuffer device_x = on_device(x), device_weight = on_device(weight),
                       all(x.size() * sizeof(float)), one(kDim * sizeof(float));
    RmsNormParams p{.out = all.raw(),
                    .x = device_x.as<float>(),
                    .weight = device_weight.as<float>(),
                    .n_rows = kRows,
                    .dim = kDim,
                    .eps = 1e-6f,
                    .act = DType::f32};
    require_same_in_graph(all, [&] { cuda_table().rms_norm(p, queue().stream()); });
    const auto rows = all.vector<float>();
    p.n_rows = 1;
    p.out = one.raw();
    for (const int r : {0, 1, 299}) {
      p.x = device_x.as<float>() + r * kDim;
      cuda_table().rms_norm(p, queue().stream());
      REQUIRE(one.vector<float>() ==
              std::vector<float>(rows.begin() + r * kDim, rows.begin() + (r + 1) * kDim));
    }
    p = {.out = device_x.raw(),
         .x = device_x.as<float>(),
         .weight = device_weight.as<float>(),
         .n_rows = kRows,
         .dim = kDim,
         .eps = 1e-6f,
         .act = DType::f32};
    cuda_table().rms_norm(p, queue().stream());
    CHECK(device_x.vector<float>() == rows);
  }

  TEST_CASE("of some rows it gives what it gives of all, and NaN of rows that are not there") {
    for (const DType act : kActs)
      for (const int dim : {6, 64, 4096}) {
        CAPTURE(dtype_name(act));
        CAPTURE(dim);
        RmsNormCase c(act, dim, 0);
        const std::vector<int32_t> rows = {c.kRows - 1, 0, 0, c.kRows, -1};
        ActBuffer all(act, c.want.size()), some(act, rows.size() * static_cast<size_t>(dim));
        const DeviceBuffer x = on_device(c.x), weight = on_device(c.weight), device_rows(rows),
                           out_all = on_device(all), out_some = on_device(some);
        RmsNormParams p = c.params(all);
        p.x = x.as<float>();
        p.weight = weight.as<float>();
        p.out = out_all.raw();
        cuda_table().rms_norm(p, queue().stream());
        p.out = out_some.raw();
        p.n_rows = static_cast<int>(rows.size());
        p.rows = device_rows.as<int32_t>();
        p.n_x = c.kRows;
        cuda_table().rms_norm(p, queue().stream());
        read_back(out_all, all);
        read_back(out_some, some);
        for (size_t r = 0; r < rows.size(); ++r)
          for (int i = 0; i < dim; ++i) {
            const float got = some.get(r * static_cast<size_t>(dim) + static_cast<size_t>(i));
            if (rows[r] < 0 || rows[r] >= c.kRows)
              REQUIRE(std::isnan(got));
            else
              REQUIRE(got == all.get(static_cast<size_t>(rows[r] * dim + i)));
          }
      }
  }
}

TEST_SUITE("gpu/kernels/gate_mul") {
  TEST_CASE("agrees with the reference") {
    for (const DType act : kActs)
      for (const int width : kWidths)
        for (const size_t offset : {0u, 1u, 3u})
          for (const Gate gate : kGates) {
            CAPTURE(dtype_name(act));
            CAPTURE(width);
            CAPTURE(offset);
            CAPTURE(static_cast<int>(gate));
            GateMulCase c(act, width, offset, gate);
            ActBuffer got(act, c.want.size(), offset);
            GateMulParams p = c.params(got);
            const DeviceBuffer out = on_device(got), gate_up = on_device(c.gate_up);
            p.out = out.raw();
            p.gate_up = gate_up.raw();
            cuda_table().gate_mul(p, queue().stream());
            launched("gate_mul");
            read_back(out, got);
            c.require_close(got);
          }
  }

  TEST_CASE("saturated gates") {
    for (const DType act : kActs) {
      CAPTURE(dtype_name(act));
      const float gates[] = {-200.0f, -95.0f, -88.0f, -87.5f, -86.0f, 0.0f, 87.0f, 89.0f, 200.0f};
      constexpr size_t kN = std::size(gates);
      ActBuffer gate_up(act, 2 * kN), got(act, kN), want(act, kN);
      for (size_t i = 0; i < kN; ++i) {
        gate_up.set(i, gates[i]);
        gate_up.set(kN + i, 2.0f);
      }
      GateMulParams p{.out = want.data(),
                      .gate_up = gate_up.data(),
                      .n_rows = 1,
                      .ffn_dim = static_cast<int>(kN),
                      .act = act,
                      .gate = Gate::silu};
      gate_mul_ref(p, {0, 1});
      const DeviceBuffer out = on_device(got), device_gate_up = on_device(gate_up);
      p.out = out.raw();
      p.gate_up = device_gate_up.raw();
      cuda_table().gate_mul(p, queue().stream());
      read_back(out, got);
      CHECK(got.get(0) == 0.0f);
      CHECK(got.get(1) == 0.0f);
      CHECK(got.get(5) == 0.0f);
      CHECK(got.get(8) == 400.0f);
      for (size_t i = 2; i < kN; ++i) {
        CAPTURE(gates[i]);
        CHECK(std::abs(double{got.get(i)} - want.get(i)) <= gate_mul_tolerance(act, want.get(i)));
      }
    }
  }

  TEST_CASE("more rows than a grid has, the same bits in a graph") {
    constexpr int kRows = 70000, kWidth = 24;
    ActBuffer gate_up(DType::bf16, size_t{2} * kRows * kWidth);
    PhiloxStream stream(5);
    fill(gate_up, stream, 5.0f);
    ActBuffer want(DType::bf16, size_t{kRows} * kWidth), got(DType::bf16, size_t{kRows} * kWidth);
    GateMulParams p{.out = want.data(),
                    .gate_up = gate_up.data(),
                    .n_rows = kRows,
                    .ffn_dim = kWidth,
                    .act = DType::bf16,
                    .gate = Gate::silu};
    gate_mul_ref(p, {0, kRows});
    const DeviceBuffer in = on_device(gate_up), out = on_device(got);
    p.out = out.raw();
    p.gate_up = in.raw();
    require_same_in_graph(out, [&] { cuda_table().gate_mul(p, queue().stream()); });
    read_back(out, got);
    REQUIRE_CLOSE(got, want,
                  ([&](size_t i) { return 0x1.01p-7 * std::abs(double{want.get(i)}) + kTiny; }));
  }
}

namespace {

/// A RopeCase in device memory.
struct DeviceRope {
  DeviceBuffer qkv, cosine, sine, q_norm, k_norm, pos, page, in_page, q, k, v;
  RopeKvParams p;

  DeviceRope(RopeCase& c, ActBuffer& host_q, ActBuffer& host_k, ActBuffer& host_v)
      : qkv(on_device(c.qkv)),
        cosine(on_device(c.cosine)),
        sine(on_device(c.sine)),
        q_norm(on_device(c.q_norm)),
        k_norm(on_device(c.k_norm)),
        pos(c.pos),
        page(c.page),
        in_page(c.in_page),
        q(on_device(host_q)),
        k(on_device(host_k)),
        v(on_device(host_v)),
        p(c.params(host_q, host_k, host_v)) {
    p.q = q.raw();
    p.k_pool = k.raw();
    p.v_pool = v.raw();
    p.qkv = qkv.raw();
    p.cos_table = cosine.as<float>();
    p.sin_table = sine.as<float>();
    p.pos = pos.as<int32_t>();
    p.slot_page = page.as<int32_t>();
    p.slot_in_page = in_page.as<int32_t>();
    if (!c.normed) return;
    p.q_norm = q_norm.as<float>();
    p.k_norm = k_norm.as<float>();
  }
};

void check_rope_kv(bool normed) {
  for (const DType act : kActs)
    for (const int d : {2, 6, 16, 34, 48, 64, 80, 128, 256})
      for (const int which : {0, 1, 2, 3, 4, 5}) {
        const size_t offset = which % 2;
        CAPTURE(dtype_name(act));
        CAPTURE(d);
        CAPTURE(which);
        RopeCase c(act, 4, 6, 2, d, offset, turned(d, which / 2));
        c.normed = normed;
        const auto tolerance = [&](ActBuffer& want, size_t i) {
          return normed ? normed_rope_tolerance(act, want, i, c) : rope_tolerance(act, want.get(i));
        };
        const auto n_q = static_cast<size_t>(c.n_rows * c.hq * d);
        ActBuffer q(act, n_q, offset), k(act, c.pool_size(), offset), v(act, c.pool_size(), offset);
        ActBuffer q0(act, n_q), k0(act, c.pool_size()), v0(act, c.pool_size());
        for (size_t i = 0; i < c.pool_size(); ++i)
          for (ActBuffer* pool : {&k, &k0, &v, &v0}) pool->set(i, -9.0f);
        rope_kv_ref(c.params(q0, k0, v0), {0, c.n_rows});
        const DeviceRope device(c, q, k, v);
        cuda_table().rope_kv(device.p, queue().stream());
        launched("rope_kv");
        read_back(device.q, q);
        read_back(device.k, k);
        read_back(device.v, v);
        REQUIRE_CLOSE(q, q0, ([&](size_t i) { return tolerance(q0, i); }));
        REQUIRE_CLOSE(k, k0,
                      ([&](size_t i) { return k0.get(i) == -9.0f ? 0.0 : tolerance(k0, i); }));
        REQUIRE_CLOSE(v, v0, ([](size_t) { return 0.0; }));
      }
}

}  // namespace

TEST_SUITE("gpu/kernels/rope") {
  TEST_CASE("rope_kv agrees with the reference and writes its own slots alone") {
    check_rope_kv(false);
  }

  TEST_CASE("rope_kv with norms of heads agrees with the reference") { check_rope_kv(true); }

  TEST_CASE("a row with norms of heads has the same bits alone and among others") {
    for (const DType act : kActs)
      for (const int d : {34, 64, 80, 128}) {
        CAPTURE(dtype_name(act));
        CAPTURE(d);
        RopeCase c(act, 7, 5, 2, d, 0);
        c.normed = true;
        const auto n_q = static_cast<size_t>(c.hq * d);
        ActBuffer q(act, 7 * n_q), k(act, c.pool_size()), v(act, c.pool_size());
        const DeviceRope all(c, q, k, v);
        DeviceRope one(c, q, k, v);
        cuda_table().rope_kv(all.p, queue().stream());
        one.p.n_rows = 1;
        const size_t bytes = act == DType::bf16 ? 2 : 4;
        for (int r = 0; r < 7; ++r) {
          one.p.q = one.q.as<std::byte>() + static_cast<size_t>(r) * n_q * bytes;
          one.p.qkv =
              one.qkv.as<std::byte>() + static_cast<size_t>(r * (c.hq + 2 * c.hkv) * d) * bytes;
          one.p.pos = one.pos.as<int32_t>() + r;
          one.p.slot_page = one.page.as<int32_t>() + r;
          one.p.slot_in_page = one.in_page.as<int32_t>() + r;
          cuda_table().rope_kv(one.p, queue().stream());
        }
        CHECK(one.q.vector<unsigned char>() == all.q.vector<unsigned char>());
        CHECK(one.k.vector<unsigned char>() == all.k.vector<unsigned char>());
        CHECK(one.v.vector<unsigned char>() == all.v.vector<unsigned char>());
      }
  }

  TEST_CASE("a row without a page leaves the pools alone") {
    RopeCase c(DType::bf16, 2, 4, 2, 64, 0);
    c.page = {-1, 3};
    ActBuffer q(c.act, static_cast<size_t>(2 * 4 * 64)), k(c.act, c.pool_size()),
        v(c.act, c.pool_size());
    const DeviceRope device(c, q, k, v);
    cuda_table().rope_kv(device.p, queue().stream());
    read_back(device.q, q);
    read_back(device.k, k);
    read_back(device.v, v);
    size_t written = 0;
    for (size_t i = 0; i < c.pool_size(); ++i) written += v.get(i) != 0.0f;
    CHECK(written <= 2 * 64);
    CHECK(written > 100);
    CHECK(q.get(0) != 0.0f);
    CHECK(q.get(4 * 64) != 0.0f);
  }

  TEST_CASE("rotate_q agrees with the reference, in place too; the same bits in a graph") {
    for (const DType act : kActs)
      for (const int d : {2, 34, 64, 128}) {
        CAPTURE(dtype_name(act));
        CAPTURE(d);
        RopeCase c(act, 5, 3, 1, d, 0);
        c.pos = {0, 11, 12, 13, 49};
        const auto n = static_cast<size_t>(5 * 3 * d);
        ActBuffer q(act, n), got(act, n), want(act, n);
        PhiloxStream stream(8);
        fill(q, stream, 2.0f);
        RotateQParams p{.out = want.data(),
                        .q = q.data(),
                        .cos_table = c.cosine.data(),
                        .sin_table = c.sine.data(),
                        .pos = c.pos.data(),
                        .max_pos = 12,
                        .n_rows = 5,
                        .n_heads = 3,
                        .head_dim = d,
                        .act = act};
        rotate_q_ref(p, {0, 5});
        const DeviceBuffer in = on_device(q), out = on_device(got), cosine = on_device(c.cosine),
                           sine = on_device(c.sine), pos(c.pos);
        p.out = out.raw();
        p.q = in.raw();
        p.cos_table = cosine.as<float>();
        p.sin_table = sine.as<float>();
        p.pos = pos.as<int32_t>();
        require_same_in_graph(out, [&] { cuda_table().rotate_q(p, queue().stream()); });
        read_back(out, got);
        REQUIRE_CLOSE(got, want, ([&](size_t i) { return rope_tolerance(act, want.get(i)); }));
        p.out = in.raw();
        cuda_table().rotate_q(p, queue().stream());
        CHECK(in.vector<unsigned char>() == out.vector<unsigned char>());
      }
  }

  TEST_CASE("the same bits in a graph") {
    for (const bool normed : {false, true}) {
      CAPTURE(normed);
      RopeCase c(DType::bf16, 5, 32, 8, 128, 0);
      c.normed = normed;
      ActBuffer q(c.act, static_cast<size_t>(5 * 32 * 128)), k(c.act, c.pool_size()),
          v(c.act, c.pool_size());
      const DeviceRope device(c, q, k, v);
      for (const DeviceBuffer* out : {&device.q, &device.k, &device.v})
        require_same_in_graph(*out, [&] { cuda_table().rope_kv(device.p, queue().stream()); });
    }
  }
}

TEST_SUITE("gpu/kernels/order") {
  TEST_CASE("each operation of a graph sees the results of the one before") {
    // Far more work in one operation than in the next, so that a start too early would be seen.
    constexpr int kRows = 2000, kDim = 2048;
    constexpr size_t kN = size_t{kRows} * kDim;
    Buffer<float> x(kN), weight(kDim);
    PhiloxStream stream(9);
    fill(x, stream, 1.0f);
    fill(weight, stream, 2.0f);
    const DeviceBuffer in = on_device(x), device_weight = on_device(weight),
                       normal(kN * sizeof(float)), gated(kN / 2 * sizeof(float)),
                       last(kDim / 2 * sizeof(float));
    const std::vector<int32_t> row{kRows - 1};
    const DeviceBuffer rows(row);
    const auto chain = [&](bool wait) {
      const auto done = [&] {
        if (wait) queue().wait();
      };
      for (int i = 0; i < 10; ++i) {
        const float* from = i == 0 ? in.as<float>() : normal.as<float>();
        cuda_table().rms_norm({.out = normal.raw(),
                               .x = from,
                               .weight = device_weight.as<float>(),
                               .n_rows = kRows,
                               .dim = kDim,
                               .eps = 1e-5f,
                               .act = DType::f32},
                              queue().stream());
        done();
        cuda_table().gate_mul({.out = gated.raw(),
                               .gate_up = normal.raw(),
                               .n_rows = kRows,
                               .ffn_dim = kDim / 2,
                               .act = DType::f32,
                               .gate = Gate::silu},
                              queue().stream());
        done();
        cuda_table().rms_norm({.out = last.raw(),
                               .x = gated.as<float>(),
                               .weight = device_weight.as<float>(),
                               .n_rows = 1,
                               .dim = kDim / 2,
                               .eps = 1e-5f,
                               .act = DType::f32,
                               .rows = rows.as<int32_t>(),
                               .n_x = kRows},
                              queue().stream());
        done();
      }
    };
    chain(true);
    const auto want = last.vector<float>();
    require_same_in_graph(last, [&] { chain(false); });
    CHECK(last.vector<float>() == want);
  }
}
