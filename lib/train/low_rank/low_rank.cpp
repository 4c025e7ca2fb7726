#include "train/low_rank/low_rank.h"

#include "base/check.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "ops/matmul.h"
#include "train/low_rank/low_rank_set.h"

namespace tandem::train {
namespace {

using ops::MatrixView;
using Part = TrainedMatrix::Part;

}  // namespace

LowRank::LowRank(const BackwardSpec& spec, const TrainedSet& set, model::Transformer& model,
                 Arena& arena, const Exec& exec)
    : spec_(spec),
      set_(set),
      model_(model),
      exec_(exec),
      buffers_(spec, set, arena),
      dropout_(set.low_rank.dropout) {
  model_.attach(this);
  for (int i = 0; set.low_rank.magnitude && i < spec.config.n_layers; ++i)
    for (const Role of : model::kLayerStacks) {
      const At at{i, of};
      for (const LowRankFactors& f : matrix(at).factors)
        each_rows(at, f, [&](int64_t row, const Tensor& rows, std::span<std::byte>) {
          ops::row_squares(buffers(at).squares + row, rows, stream());
        });
    }
}

const TrainedMatrix& LowRank::matrix(const At& at) const {
  return set_.layers[static_cast<size_t>(at.layer)][at.of];
}

const LowRankBuffers::OfMatrix& LowRank::buffers(const At& at) const {
  return buffers_.layers[static_cast<size_t>(at.layer)][at.of];
}

const ops::PackedWeights& LowRank::weights(const At& at) const {
  return model_.weights().layers[static_cast<size_t>(at.layer)][at.of];
}

void LowRank::each_rows(const At& at, const LowRankFactors& f, const ops::VisitRows& visit) const {
  ops::each_rows(weights(at), f.first_row, f.rows, buffers_.workspace, stream(), visit);
}

Tensor LowRank::factor(int64_t offset, int64_t rows, int64_t cols) const {
  const size_t bytes = static_cast<size_t>(offset) * dtype_bytes(spec_.dtype);
  const void* const all =
      buffers_.copies != nullptr ? buffers_.copies : static_cast<const void*>(values_.data());
  return tensor(static_cast<std::byte*>(const_cast<void*>(all)) + bytes, spec_.dtype, rows, cols);
}

Tensor LowRank::all_a(const TrainedMatrix& m, int64_t in) const {
  return factor(m.offset, inner_size(m), in);
}

void LowRank::publish(std::span<const float> values) {
  values_ = values;
  if (buffers_.copies != nullptr)
    ops::convert(buffers_.copies, spec_.dtype, values.data(), DType::f32,
                 static_cast<int64_t>(values.size()), stream());
  for (int i = 0; set_.low_rank.magnitude && i < spec_.config.n_layers; ++i)
    for (const Role of : model::kLayerStacks) update_scales({i, of});
}

void LowRank::update_scales(const At& at) {
  const int64_t rank = set_.low_rank.rank;
  for (const LowRankFactors& f : matrix(at).factors) {
    const MatrixView a(factor(f.a, rank, weights(at).in()));
    each_rows(at, f, [&](int64_t row, const Tensor& w, std::span<std::byte> workspace) {
      ops::matmul(
          {.c = matrix(buffers_.wa, DType::f32, f.rows, rank).slice(row - f.first_row, w.rows()),
           .a = MatrixView(w),
           .b = a,
           .b_transposed = true},
          workspace, stream());
    });
    ops::matmul(
        {.c = matrix(buffers_.aa, DType::f32, rank, rank), .a = a, .b = a, .b_transposed = true},
        buffers_.workspace, stream());
    ops::weight_norms({.scale = buffers(at).scale + f.first_row,
                       .squares = buffers(at).squares + f.first_row,
                       .wa = buffers_.wa,
                       .aa = buffers_.aa,
                       .b = factor(f.b, f.rows, rank),
                       .magnitude = values_.data() + f.magnitude,
                       .gamma = set_.low_rank.gamma},
                      stream());
  }
}

void LowRank::begin(const MicroBatchName& name, bool drops) {
  name_ = name;
  drops_ = drops && dropout_.drops();
}

ops::DropoutDraw LowRank::draw(const At& at) const {
  // Up to 2^16 micro-batches a step and 2^14 layers.
  const auto place = static_cast<uint32_t>(name_.batch) << 16 |
                     static_cast<uint32_t>(model::stack_index(at.layer, at.of));
  return {.seed = set_.low_rank.seed, .step = static_cast<uint32_t>(name_.step), .place = place};
}

Tensor LowRank::dropped(const At& at, const Tensor& x) {
  if (!drops_) return x;
  const Tensor to = tensor(buffers_.dropped, x.dtype(), x.rows(), x.row_size());
  dropout_.apply(to, x, draw(at), false, stream());
  return to;
}

Tensor LowRank::apart(int layer, Role of, int64_t rows) {
  if (buffers({layer, of}).added == nullptr) return {};
  return tensor(buffers_.apart, DType::f32, rows, spec_.config.dim);
}

void LowRank::add(int layer, Role of, const Tensor& y, const Tensor& x, const Tensor& sum) {
  const At at{layer, of};
  const TrainedMatrix& m = matrix(at);
  if (m.part != Part::low_rank) return;
  const int64_t rank = set_.low_rank.rank, in = x.row_size();
  const MatrixView inner = matrix(buffers(at).inner, spec_.dtype, x.rows(), inner_size(m));
  ops::matmul({.c = inner,
               .a = MatrixView(dropped(at, x)),
               .b = MatrixView(all_a(m, in)),
               .b_transposed = true,
               .scale = set_.low_rank.gamma},
              buffers_.workspace, stream());
  int64_t column = 0;
  for (const LowRankFactors& f : m.factors) {
    ops::matmul({.c = MatrixView(y).columns(f.first_row, f.rows),
                 .a = inner.columns(column, rank),
                 .b = MatrixView(factor(f.b, f.rows, rank)),
                 .b_transposed = true,
                 .accumulate = true},
                buffers_.workspace, stream());
    column += rank;
  }
  if (!set_.low_rank.magnitude) return;
  void* const added = buffers(at).added;
  const Tensor out = added == nullptr ? y : tensor(added, spec_.dtype, y.rows(), y.row_size());
  scale_outputs(at, out, y, sum, true);
}

void LowRank::scale_outputs(const At& at, const Tensor& out, const Tensor& in, const Tensor& sum,
                            bool with_bias) {
  const float* const bias = with_bias ? weights(at).bias() : nullptr;
  for (const LowRankFactors& f : matrix(at).factors)
    ops::magnitude_scale({.out = out,
                          .in = in,
                          .first = f.first_row,
                          .n = f.rows,
                          .scale = buffers(at).scale + f.first_row,
                          .bias = bias == nullptr ? nullptr : bias + f.first_row,
                          .sum = sum},
                         stream());
}

void LowRank::keep_outputs(int layer, Role of, const Tensor& y) {
  if (!set_.low_rank.magnitude || matrix({layer, of}).part != Part::low_rank) return;
  ops::convert(buffers_.outputs, spec_.dtype, y.raw(), y.dtype(), y.elements(), stream());
}

Tensor LowRank::back_through_b(int layer, Role of, const Tensor& dy, const Tensor& y,
                               std::span<float> gradient) {
  back_ = {layer, of};
  n_rows_ = dy.rows();
  const TrainedMatrix& m = matrix(back_);
  if (m.part != Part::low_rank) return dy;
  const int64_t rank = set_.low_rank.rank;
  Tensor dz = dy;
  if (set_.low_rank.magnitude) {
    const float* const bias = weights(back_).bias();
    void* const added = buffers(back_).added;
    Tensor outputs = y;
    if (added != nullptr) outputs = tensor(added, spec_.dtype, n_rows_, dy.row_size());
    if (of == Role::gate_up)
      outputs = tensor(buffers_.outputs, spec_.dtype, n_rows_, dy.row_size());
    for (const LowRankFactors& f : m.factors)
      ops::magnitude_gradient({.sums = gradient.data() + f.magnitude,
                               .dy = dy,
                               .y = outputs,
                               .first = f.first_row,
                               .n = f.rows,
                               .magnitude = values_.data() + f.magnitude,
                               .bias = bias == nullptr ? nullptr : bias + f.first_row},
                              stream());
    if (added != nullptr) dz = tensor(buffers_.scaled, spec_.dtype, n_rows_, dy.row_size());
    scale_outputs(back_, dz, dy, {}, false);
  }
  const MatrixView inner = matrix(buffers(back_).inner, spec_.dtype, n_rows_, inner_size(m));
  const MatrixView dinner = matrix(buffers_.dinner, spec_.dtype, n_rows_, inner_size(m));
  int64_t column = 0;
  for (const LowRankFactors& f : m.factors) {
    const MatrixView part = MatrixView(dz).columns(f.first_row, f.rows);
    ops::matmul({.c = dinner.columns(column, rank),
                 .a = part,
                 .b = MatrixView(factor(f.b, f.rows, rank)),
                 .scale = set_.low_rank.gamma},
                buffers_.workspace, stream());
    ops::matmul({.c = matrix(gradient.data() + f.b, DType::f32, f.rows, rank),
                 .a = part,
                 .b = inner.columns(column, rank),
                 .a_transposed = true,
                 .accumulate = true},
                buffers_.workspace, stream());
    column += rank;
  }
  return dz;
}

void LowRank::add_input_gradient(const Tensor& dx) {
  const TrainedMatrix& m = matrix(back_);
  if (m.part != Part::low_rank) return;
  Tensor to = dx;
  if (drops_) to = tensor(buffers_.dropped, dx.dtype(), n_rows_, dx.row_size());
  ops::matmul({.c = MatrixView(to),
               .a = matrix(buffers_.dinner, spec_.dtype, n_rows_, inner_size(m)),
               .b = MatrixView(all_a(m, dx.row_size())),
               .accumulate = !drops_},
              buffers_.workspace, stream());
  if (drops_) dropout_.apply(dx, to, draw(back_), true, stream());
}

void LowRank::a_gradient(const Tensor& x, std::span<float> gradient) {
  const TrainedMatrix& m = matrix(back_);
  const int64_t inner = inner_size(m);
  ops::matmul({.c = matrix(gradient.data() + m.offset, DType::f32, inner, x.row_size()),
               .a = matrix(buffers_.dinner, spec_.dtype, n_rows_, inner),
               .b = MatrixView(dropped(back_, x)),
               .a_transposed = true,
               .accumulate = true},
              buffers_.workspace, stream());
}

}  // namespace tandem::train
