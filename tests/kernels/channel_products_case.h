#pragma once
// Products of listed channels for the tests of both devices: numbers, lists, what may differ.
#include <algorithm>
#include <cstring>

#include "kernels/channels/channel_products.h"
#include "kernels/elementwise_case.h"
#include "kernels/reference.h"
#include "kernels/variants.h"

namespace tandem::test {

enum class ListKind : uint8_t { empty, one, random, full, none };

struct ChannelShape {
  int rows, dim, channels;
};

/// One FFN's matrices and a step's rows.
struct ChannelCase {
  ChannelShape shape;
  DType type;
  bool bias;
  ActBuffer gate_up, down, x, known, products;  // [2 F, D], [F, D], [rows, D], [rows, F] twice
  Buffer<float> gate_up_bias, down_bias, before;
  std::vector<int32_t> ids;
  bool listed;
  int32_t n = 0;
  Gate gate;

  ChannelCase(ChannelShape s, DType t, ListKind kind, bool with_bias, uint64_t seed)
      : shape(s),
        type(t),
        bias(with_bias),
        gate_up(t, 2 * channels() * dim()),
        down(t, channels() * dim()),
        x(t, rows() * dim()),
        known(t, rows() * channels()),
        products(t, rows() * channels()),
        gate_up_bias(2 * channels()),
        down_bias(dim()),
        before(rows() * dim()),
        listed(kind != ListKind::none),
        gate(seed % 3 == 0 ? Gate::gelu_tanh : Gate::silu) {
    PhiloxStream stream(seed);
    for (ActBuffer* b : {&gate_up, &down, &x, &known, &products}) fill(*b, stream, 1.0f);
    for (Buffer<float>* b : {&gate_up_bias, &down_bias, &before}) fill(*b, stream, 1.0f);
    for (int j = 0; j < s.channels; ++j)
      if (kind == ListKind::full || kind == ListKind::none ||
          (kind == ListKind::random && stream.below(2) == 1) ||
          (kind == ListKind::one && j == s.channels / 3))
        ids.push_back(j);
    n = static_cast<int32_t>(ids.size());
  }
  size_t rows() const { return static_cast<size_t>(shape.rows); }
  size_t dim() const { return static_cast<size_t>(shape.dim); }
  size_t channels() const { return static_cast<size_t>(shape.channels); }

  /// Of rows from `first` on; y as wide as there are channels.
  GateUpChannelsParams gates(ActBuffer& y, ChannelOutput output, int first = 0, int n_rows = -1) {
    const size_t each = dtype_bytes(type);
    const auto at = [&](ActBuffer& b, size_t width) {
      return static_cast<char*>(b.data()) + static_cast<size_t>(first) * width * each;
    };
    return {.y = y.data(),
            .x = at(x, dim()),
            .w = gate_up.data(),
            .bias = bias ? gate_up_bias.data() : nullptr,
            .gates = output == ChannelOutput::up ? at(known, channels()) : nullptr,
            .ids = listed ? ids.data() : nullptr,
            .n = listed ? &n : nullptr,
            .y_stride = shape.channels,
            .rows = n_rows < 0 ? shape.rows : n_rows,
            .in = shape.dim,
            .n_channels = shape.channels,
            .most = shape.channels,
            .type = type,
            .output = output,
            .gate = gate};
  }
  DownChannelsParams downs(float* out, int first = 0, int n_rows = -1) {
    return {.out = out,
            .y = static_cast<char*>(products.data()) +
                 static_cast<size_t>(first) * channels() * dtype_bytes(type),
            .w = down.data(),
            .bias = bias ? down_bias.data() : nullptr,
            .ids = listed ? ids.data() : nullptr,
            .n = listed ? &n : nullptr,
            .y_stride = shape.channels,
            .rows = n_rows < 0 ? shape.rows : n_rows,
            .width = shape.dim,
            .n_channels = shape.channels,
            .most = shape.channels,
            .type = type};
  }
  int down_blocks() const { return (shape.dim + kDownColumns - 1) / kDownColumns; }

  /// The value and the sum of magnitudes of row `row` of gate_up times row r of x.
  struct Product {
    double value = 0, size = 0;
  };
  Product product(size_t r, size_t row) {
    Product p;
    if (bias) p.value = gate_up_bias[row], p.size = std::abs(p.value);
    for (size_t k = 0; k < dim(); ++k) {
      const double term = double{x.get(r * dim() + k)} * gate_up.get(row * dim() + k);
      p.value += term, p.size += std::abs(term);
    }
    return p;
  }
  /// What may lie between y of place i and the reference: as the contract says.
  double gate_tolerance(ChannelOutput output, size_t at, double want) {
    const size_t r = at / channels(), i = at % channels();
    if (i >= ids.size()) return 0;
    const auto id = static_cast<size_t>(ids[i]);
    const double share = (shape.dim + 3) * spacing(DType::f32);
    Product g{}, u{};
    double factor = 0, of_factor = 0;  // the exact value, and its error
    if (output == ChannelOutput::up) {
      factor = known.get(r * channels() + id);
    } else {
      g = product(r, id);
      factor = plain_gate(gate, g.value);
      of_factor = (gate == Gate::silu ? 1.1 : 1.13) * share * g.size +
                  8 * spacing(DType::f32) * std::abs(factor) +
                  // The GPU's quick exponential, of bf16 results.
                  (type == DType::bf16 ? 0x1p-18 * std::abs(factor) : 0) +
                  gate_argument_error(gate, g.value, factor);
    }
    const double rounding = spacing(type) * std::abs(want) + 1e-37;
    if (output == ChannelOutput::gate) return of_factor + rounding;
    u = product(r, channels() + id);
    const double of_up = share * u.size;
    return of_factor * std::abs(u.value) + of_up * std::abs(factor) + of_factor * of_up + rounding +
           2 * spacing(DType::f32) * std::abs(want);
  }
  double down_tolerance(size_t at) {
    const size_t r = at / dim(), c = at % dim();
    double size = std::abs(double{before[at]}) + (bias ? std::abs(double{down_bias[c]}) : 0);
    for (size_t i = 0; i < ids.size(); ++i)
      size += std::abs(double{products.get(r * channels() + i)} *
                       down.get(static_cast<size_t>(ids[i]) * dim() + c));
    return (n + 3) * spacing(DType::f32) * size;
  }
};

/// Bits of a row of y, [rows, width].
inline bool same_row(ActBuffer& a, int i, ActBuffer& b, int k, size_t width) {
  const size_t bytes = width * dtype_bytes(a.type);
  return std::memcmp(static_cast<char*>(a.data()) + static_cast<size_t>(i) * bytes,
                     static_cast<char*>(b.data()) + static_cast<size_t>(k) * bytes, bytes) == 0;
}

inline constexpr ChannelOutput kChannelOutputs[] = {ChannelOutput::gate, ChannelOutput::gated,
                                                    ChannelOutput::up};

}  // namespace tandem::test
