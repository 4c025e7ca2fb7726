#include "ops/low_rank.h"

#include <cmath>

#include "base/check.h"
#include "ops/operation.h"

namespace tandem::ops {
namespace {

constexpr uint32_t kLevels = 65536;  // of a draw of 16 bits

int64_t row_bytes(const Tensor& t) { return t.row_size() * int64_t{sizeof(float)}; }

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.rows() == b.rows() && a.row_size() == b.row_size();
}

void squares_of_rows(float* out, const Tensor& weights, bool root, Stream stream) {
  check_stream("row_squares", weights, stream);
  const RowSquaresParams p{.squares = out,
                           .weights = weights.raw(),
                           .rows = as_int(weights.rows()),
                           .in = as_int(weights.row_size()),
                           .act = weights.dtype(),
                           .root = root};
  TANDEM_OPERATION(row_squares).run(p, p.rows, row_bytes(weights), stream);
}

}  // namespace

Dropout::Dropout(double share)
    : threshold_(static_cast<uint32_t>(std::lround(share * kLevels))),
      scale_(static_cast<float>(kLevels / (kLevels - static_cast<double>(threshold_)))) {
  TANDEM_CHECK(share >= 0 && threshold_ < kLevels, "unexpected dropout share {}", share);
}

void Dropout::apply(const Tensor& out, const Tensor& in, const DropoutDraw& draw, bool add,
                    Stream stream) const {
  check_stream("dropout", out, stream);
  TANDEM_CHECK(same_shape(out, in), "dropout: output does not fit input [{}, {}]", in.rows(),
               in.row_size());
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
  TANDEM_OPERATION(dropout).run(p, p.n_rows, row_bytes(in), stream);
}

void magnitude_scale(const MagnitudeScaleArgs& a, Stream stream) {
  check_stream("magnitude_scale", a.out, stream);
  TANDEM_CHECK(a.out.rows() == a.in.rows() && a.out.row_size() == a.in.row_size() &&
                   (a.in.dtype() == DType::f32 || a.in.dtype() == a.out.dtype()) &&
                   a.first + a.n <= a.in.row_size() &&
                   (a.sum.empty() || a.sum.elements() == a.out.elements()),
               "magnitude_scale: output or columns {} to {} do not fit input [{}, {}]", a.first,
               a.first + a.n, a.in.rows(), a.in.row_size());
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
  TANDEM_OPERATION(magnitude_scale).run(p, p.n_rows, a.n * int64_t{sizeof(float)}, stream);
}

void magnitude_gradient(const MagnitudeGradientArgs& a, Stream stream) {
  check_stream("magnitude_gradient", a.y, stream);
  TANDEM_CHECK(same_shape(a.dy, a.y) && a.first + a.n <= a.y.row_size(),
               "magnitude_gradient: dy or columns do not fit y [{}, {}]", a.y.rows(),
               a.y.row_size());
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
  TANDEM_OPERATION(magnitude_gradient).run(p, p.n, p.n_rows * int64_t{sizeof(float)}, stream);
}

void row_squares(float* squares, const Tensor& weights, Stream stream) {
  squares_of_rows(squares, weights, false, stream);
}

void weight_norms(const WeightNormsArgs& a, Stream stream) {
  check_stream("weight_norms", a.b, stream);
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
  TANDEM_OPERATION(weight_norms).run(p, p.rows, a.b.row_size() * row_bytes(a.b), stream);
}

void initial_magnitudes(float* magnitude, const Tensor& weights, Stream stream) {
  squares_of_rows(magnitude, weights, true, stream);
}

}  // namespace tandem::ops
