#include <algorithm>

#include "kernels/channels/channel_products.h"
#include "kernels/ffn/gate_ref.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

/// Row `row` of W times row r of x.
double product(const GateUpChannelsParams& p, int64_t r, int64_t row) {
  double sum = p.bias != nullptr ? p.bias[row] : 0;
  for (int64_t k = 0; k < p.in; ++k)
    sum += element(p.x, p.type, r * p.in + k) * element(p.w, p.type, row * p.in + k);
  return sum;
}

}  // namespace

void gate_up_channels_ref(const GateUpChannelsParams& p, Range places) {
  for (int64_t i = places.begin; i < places.end; ++i) {
    const int64_t id = p.ids != nullptr ? p.ids[i] : i, up = p.n_channels + id;
    for (int64_t r = 0; r < p.rows; ++r) {
      const double factor = p.output == ChannelOutput::up
                                ? element(p.gates, p.type, r * p.n_channels + id)
                                : gate_value(p.gate, product(p, r, id));
      put(p.y, p.type, r * p.y_stride + i,
          p.output == ChannelOutput::gate ? factor : factor * product(p, r, up));
    }
  }
}

void down_channels_ref(const DownChannelsParams& p, Range blocks) {
  const int64_t begin = int64_t{blocks.begin} * kDownColumns;
  const int64_t end = std::min<int64_t>(p.width, int64_t{blocks.end} * kDownColumns);
  const int n = p.n != nullptr ? *p.n : p.n_channels;
  for (int64_t r = 0; r < p.rows; ++r)
    for (int64_t c = begin; c < end; ++c) {
      double sum = double{p.out[r * p.width + c]} + (p.bias != nullptr ? p.bias[c] : 0);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t id = p.ids != nullptr ? p.ids[i] : i;
        sum += element(p.y, p.type, r * p.y_stride + i) * element(p.w, p.type, id * p.width + c);
      }
      p.out[r * p.width + c] = static_cast<float>(sum);
    }
}

}  // namespace tandem
