#include "ops/low_rank.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"

namespace tandem::ops {
namespace {

constexpr uint32_t kLevels = 65536;  // of a draw of 16 bits

int as_int(int64_t n) { return static_cast<int>(n); }

/// Runs a body on items, each of which moves about item_bytes.
template <class Params>
void run(void (*body)(const Params&, Range), const Params& p, int64_t n_items, int64_t item_bytes) {
  constexpr int64_t kGrainBytes = 65536;  // outweighs waking a thread
  const int grain = as_int(1 + kGrainBytes / std::max<int64_t>(1, item_bytes));
  parallel_ranges(as_int(n_items), grain, [&](int begin, int end) { body(p, Range{begin, end}); });
}

int64_t row_bytes(const Tensor& t) { return t.row_size() * int64_t{sizeof(float)}; }

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.rows() == b.rows() && a.row_size() == b.row_size();
}

}  // namespace

Dropout::Dropout(double share)
    : threshold_(static_cast<uint32_t>(std::lround(share * kLevels))),
      scale_(static_cast<float>(kLevels / (kLevels - static_cast<double>(threshold_)))) {
  TANDEM_CHECK(share >= 0 && threshold_ < kLevels, "dropout of {}", share);
}

void Dropout::apply(const Tensor& out, const Tensor& in, const DropoutDraw& draw, bool add,
                    Stream /*stream*/) const {
  TANDEM_CHECK(same_shape(out, in), "dropout of [{}, {}]", in.rows(), in.row_size());
  const DropoutParams p{.out = out.raw(),
                        .in = in.raw(),
                        .n_rows = as_int(in.rows()),
                        .width = as_int(in.row_size()),
                        .act = in.dtype(),
                        .add = add,
                        .threshold = threshold_,
                        .scale = scale_,
                        .seed = draw.seed,
                        .step = draw.step,
                        .place = draw.place};
  run(cpu_table().dropout, p, p.n_rows, row_bytes(in));
}

void magnitude_scale(const MagnitudeScaleArgs& a, Stream /*stream*/) {
  TANDEM_CHECK(a.out.rows() == a.in.rows() && a.out.row_size() == a.in.row_size() &&
                   (a.in.dtype() == DType::f32 || a.in.dtype() == a.out.dtype()) &&
                   a.first + a.n <= a.in.row_size() &&
                   (a.sum.empty() || a.sum.elements() == a.out.elements()),
               "magnitudes of columns {} to {} of [{}, {}]", a.first, a.first + a.n, a.in.rows(),
               a.in.row_size());
  const MagnitudeScaleParams p{.out = a.out.raw(),
                               .in = a.in.raw(),
                               .n_rows = as_int(a.in.rows()),
                               .width = as_int(a.in.row_size()),
                               .first = as_int(a.first),
                               .n = as_int(a.n),
                               .scale = a.scale,
                               .bias = a.bias,
                               .sum = a.sum.empty() ? nullptr : a.sum.as<float>(),
                               .act = a.out.dtype(),
                               .in_type = a.in.dtype()};
  run(cpu_table().magnitude_scale, p, p.n_rows, a.n * int64_t{sizeof(float)});
}

void magnitude_gradient(const MagnitudeGradientArgs& a, Stream /*stream*/) {
  TANDEM_CHECK(same_shape(a.dy, a.y) && a.first + a.n <= a.y.row_size(), "magnitudes of [{}, {}]",
               a.y.rows(), a.y.row_size());
  const MagnitudeGradientParams p{.sums = a.sums,
                                  .dy = a.dy.raw(),
                                  .y = a.y.raw(),
                                  .magnitude = a.magnitude,
                                  .n_rows = as_int(a.y.rows()),
                                  .width = as_int(a.y.row_size()),
                                  .first = as_int(a.first),
                                  .n = as_int(a.n),
                                  .bias = a.bias,
                                  .act = a.y.dtype()};
  run(cpu_table().magnitude_gradient, p, p.n, p.n_rows * int64_t{sizeof(float)});
}

void row_squares(float* squares, const Tensor& weights, Stream /*stream*/) {
  const RowSquaresParams p{.squares = squares,
                           .weights = weights.raw(),
                           .rows = as_int(weights.rows()),
                           .in = as_int(weights.row_size()),
                           .act = weights.dtype()};
  run(cpu_table().row_squares, p, p.rows, row_bytes(weights));
}

void weight_norms(const WeightNormsArgs& a, Stream /*stream*/) {
  const WeightNormsParams p{.scale = a.scale,
                            .squares = a.squares,
                            .wa = a.wa,
                            .aa = a.aa,
                            .b = a.b.raw(),
                            .magnitude = a.magnitude,
                            .gamma = a.gamma,
                            .rows = as_int(a.b.rows()),
                            .rank = as_int(a.b.row_size()),
                            .act = a.b.dtype()};
  run(cpu_table().weight_norms, p, p.rows, a.b.row_size() * row_bytes(a.b));
}

void initial_magnitudes(float* magnitude, const Tensor& weights, Stream stream) {
  row_squares(magnitude, weights, stream);
  for (int64_t r = 0; r < weights.rows(); ++r)
    magnitude[r] = std::max(static_cast<float>(std::sqrt(double{magnitude[r]})), kLeastWeightNorm);
}

}  // namespace tandem::ops
