#include "kernels/channel_products_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kUnwritten = 77;

ActBuffer unwritten(const ChannelCase& c) {
  ActBuffer y(c.type, c.rows() * c.channels());
  for (size_t i = 0; i < y.size(); ++i) y.set(i, kUnwritten);
  return y;
}

ActBuffer before(ChannelCase& c) {
  ActBuffer out(DType::f32, c.before.size());
  for (size_t i = 0; i < out.size(); ++i) out.set(i, c.before[i]);
  return out;
}

void check_gates(ChannelCase& c, Isa isa) {
  for (const ChannelOutput output : kChannelOutputs) {
    CAPTURE(static_cast<int>(output));
    ActBuffer want = unwritten(c), got = unwritten(c);
    gate_up_channels_ref(c.gates(want, output), {0, c.n});
    // In two ranges, as threads take them.
    cpu_table(isa).gate_up_channels(c.gates(got, output), {0, c.n / 3});
    cpu_table(isa).gate_up_channels(c.gates(got, output), {c.n / 3, c.n});
    REQUIRE_CLOSE(got, want, [&](size_t i) { return c.gate_tolerance(output, i, want.get(i)); });
    for (int r = 0; r < c.shape.rows; ++r) {
      ActBuffer alone = unwritten(c);
      cpu_table(isa).gate_up_channels(c.gates(alone, output, r, 1), {0, c.n});
      REQUIRE(same_row(alone, 0, got, r, c.channels()));
    }
  }
}

void check_down(ChannelCase& c, Isa isa) {
  ActBuffer want = before(c), got = before(c);
  const int blocks = c.down_blocks();
  down_channels_ref(c.downs(want.f32.data()), {0, blocks});
  cpu_table(isa).down_channels(c.downs(got.f32.data()), {0, blocks / 2});
  cpu_table(isa).down_channels(c.downs(got.f32.data()), {blocks / 2, blocks});
  REQUIRE_CLOSE(got, want, [&](size_t i) { return c.down_tolerance(i); });
  for (int r = 0; r < c.shape.rows; ++r) {
    ActBuffer alone = before(c);
    const size_t at = static_cast<size_t>(r) * c.dim();
    cpu_table(isa).down_channels(c.downs(alone.f32.data() + at, r, 1), {0, blocks});
    REQUIRE(same_row(alone, r, got, r, c.dim()));
  }
}

}  // namespace

TEST_SUITE("kernels/channel_products") {
  TEST_CASE("listed channels on every ISA: as the reference, each row as if alone") {
    uint64_t seed = 0;
    for (const Isa isa : usable_isas())
      for (const DType type : {DType::f32, DType::bf16})
        for (const ListKind kind :
             {ListKind::empty, ListKind::one, ListKind::random, ListKind::full, ListKind::none})
          for (const ChannelShape shape :
               {ChannelShape{1, 64, 172}, ChannelShape{2, 172, 64}, ChannelShape{3, 37, 51},
                ChannelShape{5, 256, 33}, ChannelShape{16, 131, 29}}) {
            CAPTURE(static_cast<int>(isa));
            CAPTURE(dtype_name(type));
            CAPTURE(static_cast<int>(kind));
            CAPTURE(shape.rows);
            ChannelCase c(shape, type, kind, seed % 2 == 1, seed);
            ++seed;
            check_gates(c, isa);
            check_down(c, isa);
          }
  }

  TEST_CASE("1 to 16 rows") {
    for (const Isa isa : usable_isas())
      for (const DType type : {DType::f32, DType::bf16})
        for (int rows = 1; rows <= kListedRows; ++rows) {
          CAPTURE(static_cast<int>(isa));
          CAPTURE(rows);
          ChannelCase c({rows, 70, 41}, type, ListKind::random, true, static_cast<uint64_t>(rows));
          check_gates(c, isa);
          check_down(c, isa);
        }
  }

  TEST_CASE("the reference of a product in figures") {
    // Two channels of two columns, one row: g = 1, 2 and u = 3, -1.
    const float w[] = {1, 0, 0, 2, 3, 0, 0, -1}, x[] = {1, 1}, down[] = {1, 10, 100, 1000};
    float y[2] = {};
    const int32_t ids[] = {0, 1}, n = 2;
    GateUpChannelsParams p{.y = y,
                           .x = x,
                           .w = w,
                           .bias = nullptr,
                           .gates = nullptr,
                           .ids = ids,
                           .n = &n,
                           .y_stride = 2,
                           .rows = 1,
                           .in = 2,
                           .n_channels = 2,
                           .most = 2,
                           .type = DType::f32,
                           .output = ChannelOutput::gated,
                           .gate = Gate::gelu_tanh};
    gate_up_channels_ref(p, {0, 2});
    CHECK(y[0] == doctest::Approx(3 * 0.8411919906));
    CHECK(y[1] == doctest::Approx(-1.954597694));
    p.gate = Gate::silu;
    gate_up_channels_ref(p, {0, 2});
    CHECK(y[0] == doctest::Approx(3 * 0.7310585786));
    CHECK(y[1] == doctest::Approx(-2 * 0.8807970780));
    const float a[] = {2, 3};
    float out[] = {5, 6};
    down_channels_ref({.out = out,
                       .y = a,
                       .w = down,
                       .bias = nullptr,
                       .ids = ids,
                       .n = &n,
                       .y_stride = 2,
                       .rows = 1,
                       .width = 2,
                       .n_channels = 2,
                       .most = 2,
                       .type = DType::f32},
                      {0, 1});
    CHECK(out[0] == 307);
    CHECK(out[1] == 3026);
  }
}
