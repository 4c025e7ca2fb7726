// Products of listed channels, and weights by input, on a GPU.
#include <cstring>

#include "gpu/device_buffer.h"
#include "kernels/channel_products_case.h"
#include "ops/channels.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};
constexpr float kUnwritten = 77;

/// A case's matrices and list on the GPU, and runs of some of its rows.
struct DeviceCase {
  ChannelCase& c;
  DeviceBuffer gate_up, down, x, known, products, gate_up_bias, down_bias, ids, n;

  explicit DeviceCase(ChannelCase& of)
      : c(of),
        gate_up(on_device(of.gate_up)),
        down(on_device(of.down)),
        x(on_device(of.x)),
        known(on_device(of.known)),
        products(on_device(of.products)),
        gate_up_bias(on_device(of.gate_up_bias)),
        down_bias(on_device(of.down_bias)),
        ids(of.ids.data(), std::max<size_t>(1, of.ids.size()) * sizeof(int32_t)),
        n(&of.n, sizeof(int32_t)) {}

  static const char* at(const DeviceBuffer& b, size_t bytes) { return b.as<char>() + bytes; }

  GateUpChannelsParams gates(const DeviceBuffer& y, ChannelOutput output, int first, int rows) {
    ActBuffer none(c.type, 0);
    GateUpChannelsParams p = c.gates(none, output, first, rows);
    const size_t each = static_cast<size_t>(first) * dtype_bytes(c.type);
    p.y = y.raw();
    p.x = at(x, each * c.dim());
    p.w = gate_up.raw();
    if (p.bias != nullptr) p.bias = gate_up_bias.as<float>();
    if (p.gates != nullptr) p.gates = at(known, each * c.channels());
    if (p.ids != nullptr) p.ids = ids.as<int32_t>();
    if (p.n != nullptr) p.n = n.as<int32_t>();
    p.settled = rows == 1;
    return p;
  }
  DownChannelsParams downs(float* out, int first, int rows) {
    DownChannelsParams p = c.downs(out, first, rows);
    p.y = at(products, static_cast<size_t>(first) * dtype_bytes(c.type) * c.channels());
    p.w = down.raw();
    if (p.bias != nullptr) p.bias = down_bias.as<float>();
    if (p.ids != nullptr) p.ids = ids.as<int32_t>();
    if (p.n != nullptr) p.n = n.as<int32_t>();
    return p;
  }
  ActBuffer run_gates(ChannelOutput output, int first, int rows) {
    ActBuffer y(c.type, static_cast<size_t>(rows) * c.channels());
    for (size_t i = 0; i < y.size(); ++i) y.set(i, kUnwritten);
    const DeviceBuffer dy = on_device(y);
    cuda_table().gate_up_channels(gates(dy, output, first, rows), queue().stream());
    cuda::launched("gate_up_channels", queue().stream());
    read_back(dy, y);
    return y;
  }
  ActBuffer run_down(int first, int rows) {
    ActBuffer out(DType::f32, static_cast<size_t>(rows) * c.dim());
    for (size_t i = 0; i < out.size(); ++i)
      out.set(i, c.before[static_cast<size_t>(first) * c.dim() + i]);
    const DeviceBuffer dout = on_device(out);
    cuda_table().down_channels(downs(dout.as<float>(), first, rows), queue().stream());
    cuda::launched("down_channels", queue().stream());
    read_back(dout, out);
    return out;
  }
};

void check(const ChannelShape& shape, DType type, ListKind kind, uint64_t seed) {
  CAPTURE(shape.rows);
  CAPTURE(shape.dim);
  CAPTURE(shape.channels);
  CAPTURE(dtype_name(type));
  CAPTURE(static_cast<int>(kind));
  ChannelCase c(shape, type, kind, seed % 2 == 1, seed);
  DeviceCase d(c);
  for (const ChannelOutput output : kChannelOutputs) {
    CAPTURE(static_cast<int>(output));
    ActBuffer want(type, c.rows() * c.channels());
    for (size_t i = 0; i < want.size(); ++i) want.set(i, kUnwritten);
    gate_up_channels_ref(c.gates(want, output), {0, c.n});
    ActBuffer got = d.run_gates(output, 0, shape.rows);
    REQUIRE_CLOSE(got, want, [&](size_t i) { return c.gate_tolerance(output, i, want.get(i)); });
    for (int r = 0; r < shape.rows; r += 3) {
      ActBuffer alone = d.run_gates(output, r, 1);
      REQUIRE(same_row(alone, 0, got, r, c.channels()));
    }
  }
  ActBuffer want(DType::f32, c.rows() * c.dim());
  for (size_t i = 0; i < want.size(); ++i) want.set(i, c.before[i]);
  down_channels_ref(c.downs(want.f32.data()), {0, c.down_blocks()});
  ActBuffer got = d.run_down(0, shape.rows);
  REQUIRE_CLOSE(got, want, [&](size_t i) { return c.down_tolerance(i); });
  for (int r = 0; r < shape.rows; r += 3) {
    ActBuffer alone = d.run_down(r, 1);
    REQUIRE(same_row(alone, 0, got, r, c.dim()));
  }
}

/// Weights [out, in] on a GPU, by input, from rows of the host or, as `device_rows` says, of its
/// own.
struct ByInput {
  ops::PackedWeights::Spec spec;
  ActBuffer w;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  ByInput(int64_t out, int64_t in, DType dtype, bool device_rows)
      : spec{.name = "weights/w",
             .out = out,
             .in = in,
             .bias = true,
             .stored = dtype,
             .device = kGpu,
             .by_input = true},
        w(dtype, static_cast<size_t>(out * in)) {
    PhiloxStream stream(5);
    fill(w, stream, 1.0f);
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
    arena = std::make_unique<Arena>(plan);
    ops::Staging staging(kGpu, arena->take("load/staging"), plan.find("load/staging")->bytes);
    const size_t row = static_cast<size_t>(in) * dtype_bytes(dtype);
    const auto from = [&](int64_t begin) {
      return static_cast<char*>(w.data()) + static_cast<size_t>(begin) * row;
    };
    const DeviceBuffer on_gpu = on_device(w);
    ops::PackedWeights::DeviceRowSource source;
    if (device_rows)
      source = [&](int64_t begin, int64_t end, void* to, Stream to_stream) {
        // Any kernel that writes: a copy by rows.
        cuda_table().transpose_rows({.to = to,
                                     .from = on_gpu.as<char>() + static_cast<size_t>(begin) * row,
                                     .from_stride = 1,
                                     .height = (end - begin) * in,
                                     .width = 1,
                                     .first = 0,
                                     .n_rows = (end - begin) * in,
                                     .type = dtype},
                                    to_stream);
        return true;
      };
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          REQUIRE_FALSE(device_rows);
          std::memcpy(to, from(begin), static_cast<size_t>(end - begin) * row);
        },
        std::vector<float>(static_cast<size_t>(out), 0.5f), staging, source);
    staging.wait();
  }
};

}  // namespace

TEST_SUITE("gpu/channels") {
  TEST_CASE("listed channels: as the reference, each row as if alone") {
    uint64_t seed = 0;
    for (const DType type : {DType::bf16, DType::f32})
      for (const ListKind kind :
           {ListKind::empty, ListKind::one, ListKind::random, ListKind::full, ListKind::none})
        for (const ChannelShape shape :
             {ChannelShape{1, 64, 172}, ChannelShape{2, 172, 64}, ChannelShape{3, 37, 51},
              ChannelShape{4, 1032, 700}, ChannelShape{16, 520, 333}})
          check(shape, type, kind, seed++);
  }

  TEST_CASE("1 to 16 rows, and more channels and columns than the blocks take at once") {
    for (int rows = 1; rows <= kListedRows; ++rows)
      check({rows, 328, 301}, DType::bf16, ListKind::random, static_cast<uint64_t>(rows));
    for (const int rows : {1, 4}) check({rows, 4096, 3001}, DType::bf16, ListKind::random, 3);
  }

  TEST_CASE("a graph takes the list as it is when it is launched") {
    ChannelCase c({4, 256, 400}, DType::bf16, ListKind::random, false, 8);
    DeviceCase d(c);
    const DeviceBuffer y(c.rows() * c.channels() * sizeof(bf16)),
        out(c.rows() * c.dim() * sizeof(float));
    // The products of the list are the inputs of down, as in a model.
    const cuda::Graph graph(queue(), [&] {
      cuda_table().gate_up_channels(d.gates(y, ChannelOutput::gated, 0, c.shape.rows),
                                    queue().stream());
      DownChannelsParams p = d.downs(out.as<float>(), 0, c.shape.rows);
      p.y = y.raw();
      cuda_table().down_channels(p, queue().stream());
    });
    const std::vector<int32_t> all = c.ids;
    for (const size_t n : {all.size(), size_t{3}, size_t{0}, all.size() / 2}) {
      CAPTURE(n);
      c.ids.assign(all.begin(), all.begin() + static_cast<long>(n));
      c.n = static_cast<int32_t>(n);
      queue().copy_in(d.n.raw(), &c.n, sizeof(c.n));
      queue().copy_in(out.raw(), c.before.data(), out.bytes());
      queue().wait();
      graph.launch(queue());
      ActBuffer products(c.type, c.rows() * c.channels()), got(DType::f32, c.rows() * c.dim());
      read_back(y, products);
      read_back(out, got);
      ActBuffer want_products(c.type, products.size());
      gate_up_channels_ref(c.gates(want_products, ChannelOutput::gated), {0, c.n});
      for (size_t r = 0; r < c.rows(); ++r)
        for (size_t i = 0; i < n; ++i) {
          const size_t at = r * c.channels() + i;
          const double want = want_products.get(at);
          REQUIRE(std::abs(products.get(at) - want) <=
                  c.gate_tolerance(ChannelOutput::gated, at, want));
        }
      c.products = products;
      ActBuffer want(DType::f32, got.size());
      for (size_t i = 0; i < want.size(); ++i) want.set(i, c.before[i]);
      down_channels_ref(c.downs(want.f32.data()), {0, c.down_blocks()});
      REQUIRE_CLOSE(got, want, [&](size_t i) { return c.down_tolerance(i); });
    }
  }

  TEST_CASE("weights by input: [in, out], on which products of any number of rows run") {
    constexpr int64_t kOut = 328, kIn = 712;
    const size_t bytes =
        ops::PackedWeights::workspace_bytes({"", 1, 1, false, DType::bf16, DType::bf16, kGpu}, 64);
    const DeviceBuffer workspace(bytes);
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const bool device_rows : {false, true}) {
        ByInput layer(kOut, kIn, dtype, device_rows);
        CHECK(layer.packed.device_rows() == nullptr);
        ActBuffer by_input(dtype, layer.w.size());
        queue().copy_out(by_input.data(), layer.packed.input_rows(),
                         by_input.size() * dtype_bytes(dtype));
        queue().wait();
        for (size_t o = 0; o < kOut; ++o)
          for (size_t i = 0; i < kIn; ++i)
            REQUIRE(by_input.get(i * kOut + o) == layer.w.get(o * kIn + i));
        for (const int rows : {1, 2, 7, 16, 17, 61})
          for (const auto add : {ops::Accumulate::no, ops::Accumulate::yes}) {
            CAPTURE(rows);
            const auto n = static_cast<size_t>(rows);
            ActBuffer x(dtype, n * kIn), got(DType::f32, n * kOut), want(DType::f32, n * kOut);
            PhiloxStream stream(9);
            fill(x, stream, 1.0f);
            for (size_t i = 0; i < got.size(); ++i) got.set(i, 3);
            const DeviceBuffer dx = on_device(x), dy = on_device(got);
            ops::linear({dy.raw(), DType::f32, {rows, kOut}, kGpu},
                        {dx.raw(), dtype, {rows, kIn}, kGpu}, layer.packed, add,
                        {workspace.as<std::byte>(), bytes}, queue().stream());
            read_back(dy, got);
            std::vector<double> sizes(want.size());
            for (size_t r = 0; r < n; ++r)
              for (size_t o = 0; o < kOut; ++o) {
                double sum = add == ops::Accumulate::yes ? 3.5 : 0.5, size = sum;
                for (size_t i = 0; i < kIn; ++i) {
                  const double term = double{x.get(r * kIn + i)} * layer.w.get(o * kIn + i);
                  sum += term, size += std::abs(term);
                }
                want.set(r * kOut + o, static_cast<float>(sum));
                sizes[r * kOut + o] = size;
              }
            REQUIRE_CLOSE(got, want, [&](size_t i) {
              return static_cast<double>(kIn + 3) * spacing(DType::f32) * sizes[i];
            });
          }
      }
  }

  TEST_CASE("channels of a set and of the rest change places, with their biases") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool bias : {false, true})
        for (const int64_t width : {64, 4096, 50, 7}) {
          CAPTURE(width);
          constexpr int kSet = 5, kRest = 8;
          const size_t number = dtype_bytes(dtype), row = static_cast<size_t>(width) * number;
          // Every byte is the number of its channel and matrix, a bias its channel.
          const auto matrices = [&](int n, int first) {
            std::vector<uint8_t> bytes;
            for (int k = 0; k < 3; ++k)
              for (int c = 0; c < n; ++c)
                bytes.insert(bytes.end(), row, static_cast<uint8_t>(32 * k + first + c));
            return bytes;
          };
          const auto biases = [&](int n, int first) {
            std::vector<float> values;
            for (int k = 0; k < 2; ++k)
              for (int c = 0; c < n; ++c) values.push_back(static_cast<float>(100 * k + first + c));
            return values;
          };
          const DeviceBuffer set(matrices(kSet, 0)), set_bias(biases(kSet, 0)),
              set_rounded(biases(kSet, 0));
          // The rest is in pinned host memory.
          cuda::PinnedBuffer rest(3 * kRest * row), rest_bias(2 * kRest * sizeof(float)),
              rest_rounded(2 * kRest * sizeof(bf16));
          std::ranges::copy(matrices(kRest, kSet), reinterpret_cast<uint8_t*>(rest.data()));
          std::ranges::copy(biases(kRest, kSet), reinterpret_cast<float*>(rest_bias.data()));
          const auto side = [&](void* weights, void* values, void* rounded, int n) {
            return ChannelMatrices{
                .gate_up = weights,
                .down = static_cast<uint8_t*>(weights) + static_cast<size_t>(2 * n) * row,
                .bias = bias ? static_cast<float*>(values) : nullptr,
                .rounded_bias = static_cast<bf16*>(rounded),
                .n_channels = n};
          };
          const std::vector<int32_t> swaps = {0, 7, 3, 0, 4, 2};
          const DeviceBuffer on_gpu(swaps);
          cuda_table().exchange_channels(
              {.set = side(set.raw(), set_bias.raw(), set_rounded.raw(), kSet),
               .rest = side(rest.data(), rest_bias.data(), rest_rounded.data(), kRest),
               .swaps = on_gpu.as<int32_t>(),
               .n = 3,
               .width = static_cast<int>(width),
               .type = dtype},
              queue().stream());
          queue().wait();
          std::vector<int> in_set = {0, 1, 2, 3, 4}, in_rest = {5, 6, 7, 8, 9, 10, 11, 12};
          for (size_t i = 0; i < swaps.size(); i += 2)
            std::swap(in_set[static_cast<size_t>(swaps[i])],
                      in_rest[static_cast<size_t>(swaps[i + 1])]);
          const std::vector<uint8_t> now = set.vector<uint8_t>();
          const auto* const far = reinterpret_cast<const uint8_t*>(rest.data());
          for (int k = 0; k < 3; ++k) {
            for (size_t c = 0; c < in_set.size(); ++c)
              for (const size_t at : {size_t{0}, row / 2, row - 1})
                CHECK(now[(static_cast<size_t>(k) * kSet + c) * row + at] == 32 * k + in_set[c]);
            for (size_t c = 0; c < in_rest.size(); ++c)
              for (const size_t at : {size_t{0}, row / 2, row - 1})
                CHECK(far[(static_cast<size_t>(k) * kRest + c) * row + at] == 32 * k + in_rest[c]);
          }
          const std::vector<float> values = set_bias.vector<float>();
          for (int k = 0; k < 2; ++k)
            for (size_t c = 0; c < in_set.size(); ++c)
              CHECK(values[static_cast<size_t>(k) * kSet + c] ==
                    static_cast<float>(100 * k + (bias ? in_set[c] : static_cast<int>(c))));
        }
  }

  TEST_CASE("scattered columns are where the list says, others keep their bits") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      constexpr int kRows = 3, kWidth = 40, kColumns = 17;
      const size_t number = dtype_bytes(dtype);
      std::vector<uint8_t> in, before(kRows * kWidth * number, 0xee);
      for (int i = 0; i < kRows * kColumns; ++i)
        in.insert(in.end(), number, static_cast<uint8_t>(i));
      std::vector<int32_t> columns;
      for (int c = 0; c < kColumns; ++c) columns.push_back((c * 7 + 3) % kWidth);
      const DeviceBuffer from(in), list(columns), to(before);
      ops::scatter_columns({to.raw(), dtype, {kRows, kWidth}, kGpu},
                           {from.raw(), dtype, {kRows, kColumns}, kGpu}, list.as<int32_t>(),
                           queue().stream());
      queue().wait();
      std::vector<uint8_t> expected = before;
      for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c)
          for (size_t b = 0; b < number; ++b)
            expected[(static_cast<size_t>(r * kWidth + columns[static_cast<size_t>(c)])) * number +
                     b] = static_cast<uint8_t>(r * kColumns + c);
      CHECK(to.vector<uint8_t>() == expected);
    }
  }
}
