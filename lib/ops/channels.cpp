#include "ops/channels.h"

#include <algorithm>

#include "base/check.h"
#include "ops/linear_device.h"
#include "ops/linear_gradient.h"
#include "ops/operation.h"

namespace tandem::ops {
namespace {

constexpr Operation kGateUp = TANDEM_OPERATION(gate_up_channels);

int64_t channels_of(const PackedWeights& gate_up) { return gate_up.out() / 2; }

int64_t row_bytes(const PackedWeights& w) { return static_cast<int64_t>(w.row_bytes()); }

void check_gate_up(const Tensor& y, const Tensor& x, const PackedWeights& w, int64_t places) {
  TANDEM_CHECK(x.dtype() == w.input() && x.row_size() == w.in() && x.rows() <= kListedRows &&
                   y.dtype() == w.input() && y.rows() == x.rows() && y.row_size() >= places,
               "gate_up: output {} [{}, {}] does not fit input {} [{}, {}] and {} neurons",
               dtype_name(y.dtype()), y.rows(), y.row_size(), dtype_name(x.dtype()), x.rows(),
               x.row_size(), places);
}

GateUpChannelsParams gate_up_params(const Tensor& y, const Tensor& x, const PackedWeights& w,
                                    ChannelOutput output, Gate gate = {}) {
  return {.y = y.raw(),
          .x = x.raw(),
          .w = w.device_codes() != nullptr ? nullptr : trainable_rows(w),
          .bias = w.bias(),
          .gates = nullptr,
          .ids = nullptr,
          .n = nullptr,
          .y_stride = y.row_size(),
          .rows = static_cast<int>(x.rows()),
          .in = static_cast<int>(w.in()),
          .n_channels = static_cast<int>(channels_of(w)),
          .most = 0,
          .type = w.input(),
          .output = output,
          .gate = gate,
          .codes = codes_or_none(w)};
}

void run_listed(GateUpChannelsParams p, const ChannelList& list, int64_t channel_bytes,
                Stream stream) {
  p.ids = list.ids;
  p.n = list.n;
  p.most = list.most;
  p.settled = list.settled;
  kGateUp.run(p, stream.handle == nullptr && list.n != nullptr ? *list.n : list.most, channel_bytes,
              stream);
}

}  // namespace

void gates(const Tensor& y, const Tensor& x, const PackedWeights& w, Gate gate, Stream stream) {
  check_gate_up(y, x, w, channels_of(w));
  GateUpChannelsParams p = gate_up_params(y, x, w, ChannelOutput::gate, gate);
  p.most = p.n_channels;
  kGateUp.run(p, p.n_channels, row_bytes(w), stream);
}

void gated_channels(const Tensor& y, const Tensor& x, const PackedWeights& w, Gate gate,
                    const ChannelList& list, Stream stream) {
  check_gate_up(y, x, w, list.most);
  run_listed(gate_up_params(y, x, w, ChannelOutput::gated, gate), list, 2 * row_bytes(w), stream);
}

void up_channels(const Tensor& y, const Tensor& gates, const Tensor& x, const PackedWeights& w,
                 const ChannelList& list, Stream stream) {
  check_gate_up(y, x, w, list.most);
  TANDEM_CHECK(
      gates.dtype() == w.input() && gates.rows() == x.rows() && gates.row_size() == channels_of(w),
      "gates {} [{}, {}] do not fit {} neurons", dtype_name(gates.dtype()), gates.rows(),
      gates.row_size(), channels_of(w));
  GateUpChannelsParams p = gate_up_params(y, x, w, ChannelOutput::up);
  p.gates = gates.raw();
  run_listed(p, list, row_bytes(w), stream);
}

void down_channels(const Tensor& out, const Tensor& y, const PackedWeights& w,
                   const ChannelList& list, Stream stream) {
  TANDEM_CHECK(out.dtype() == DType::f32 && out.row_size() == w.out() && out.rows() == y.rows() &&
                   y.dtype() == w.input() && y.row_size() >= list.most && y.rows() <= kListedRows,
               "down: output [{}, {}] does not fit rows [{}, {}]", out.rows(), out.row_size(),
               y.rows(), y.row_size());
  const DownChannelsParams p{.out = out.as<float>(),
                             .y = y.raw(),
                             .w = w.input_rows(),
                             .bias = w.bias(),
                             .ids = list.ids,
                             .n = list.n,
                             .y_stride = y.row_size(),
                             .rows = static_cast<int>(y.rows()),
                             .width = static_cast<int>(w.out()),
                             .n_channels = static_cast<int>(w.in()),
                             .most = list.most,
                             .type = w.input(),
                             .codes = codes_or_none(w)};
  TANDEM_CHECK(p.w != nullptr || p.codes.by_input, "down: weights [{}, {}] are not stored by input",
               w.out(), w.in());
  const int blocks = (p.width + kDownColumns - 1) / kDownColumns;
  const int64_t column_bytes = kDownColumns * static_cast<int64_t>(dtype_bytes(p.type));
  const int n = stream.handle == nullptr && list.n != nullptr ? *list.n : list.most;
  TANDEM_OPERATION(down_channels).run(p, blocks, n * column_bytes, stream);
}

namespace {

ChannelMatrices matrices_of(const PackedWeights& gate_up, const PackedWeights& down) {
  const CudaLinear& upper = *gate_up.state().cuda;
  TANDEM_CHECK(
      gate_up.out() == 2 * down.in() && gate_up.in() == down.out() && down.input_rows() != nullptr,
      "gate_up [{}, {}] does not fit down [{}, {}] stored by input", gate_up.out(), gate_up.in(),
      down.out(), down.in());
  return {.gate_up = linear_cuda::rows(upper),
          .down = linear_cuda::rows(*down.state().cuda),
          .bias = linear_cuda::bias(upper),
          .rounded_bias = static_cast<bf16*>(linear_cuda::rounded_bias(upper)),
          .n_channels = static_cast<int>(down.in())};
}

}  // namespace

void exchange_channels(const ExchangeChannels& what, Stream stream) {
  const ExchangeChannelsParams p{.set = matrices_of(what.set_gate_up, what.set_down),
                                 .rest = matrices_of(what.rest_gate_up, what.rest_down),
                                 .swaps = what.swaps,
                                 .n = what.n_swaps,
                                 .width = static_cast<int>(what.set_down.out()),
                                 .type = what.set_down.dtype()};
  TANDEM_CHECK(what.rest_down.out() == p.width && what.rest_down.dtype() == p.type,
               "sizes of hot and cold neurons differ: {} and {} numbers", p.width,
               what.rest_down.out());
  launch(TANDEM_KERNEL(exchange_channels), p, stream);
}

void scatter_columns(const Tensor& out, const Tensor& in, const int32_t* columns, Stream stream) {
  TANDEM_CHECK(
      out.rows() == in.rows() && out.dtype() == in.dtype() && in.row_size() <= out.row_size(),
      "scatter_columns: input [{}, {}] does not fit output [{}, {}]", in.rows(), in.row_size(),
      out.rows(), out.row_size());
  launch(TANDEM_KERNEL(scatter_columns),
         {.out = out.raw(),
          .in = in.raw(),
          .columns = columns,
          .n_rows = static_cast<int>(in.rows()),
          .width = static_cast<int>(out.row_size()),
          .n_columns = static_cast<int>(in.row_size()),
          .act = in.dtype()},
         stream);
}

void unite_channels(const UniteChannelsParams& params, Stream stream) {
  TANDEM_OPERATION(unite_channels)
      .run(params, params.n_lists, int64_t{params.n_channels} * int64_t{sizeof(int32_t)}, stream);
}

}  // namespace tandem::ops
