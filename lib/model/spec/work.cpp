#include "model/spec/work.h"

#include "model/spec/weight_formats.h"

namespace tandem::model {

double layer_flops(const ModelConfig& c) {
  double weights = 0;
  for (const Role role : kLayerStacks) {
    const io::Shape shape = shape_of(role, c);
    weights += static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
  }
  return 2.0 * c.n_layers * weights;
}

int64_t weight_bytes(const ModelConfig& c, const WeightFormat& stored) {
  size_t bytes = 0;
  for (const MatrixId& id : all_matrices(c)) {
    const io::Shape s = shape_of(id.role, c);
    bytes += s.size() == 1 ? matrix_bytes(widens_to(stored), 1, s[0])
                           : matrix_bytes(stored_as(c, id, stored), s[0], s[1]);
  }
  return static_cast<int64_t>(bytes);
}

double step_params(const ModelConfig& c) {
  return static_cast<double>(n_params(c)) - (c.head.tied ? 0.0 : double(c.head_rows()) * c.dim);
}

double step_bytes(const ModelConfig& c, const WeightFormat& stored) {
  const size_t embedding =
      matrix_bytes(stored_as(c, {Role::embedding}, stored), c.head_rows(), c.dim);
  return static_cast<double>(weight_bytes(c, stored)) -
         (c.head.tied ? 0.0 : static_cast<double>(embedding));
}

double param_density(const ModelConfig& c, double channels, bool all_gates) {
  const double dim = c.dim;
  const double attention = dim * (2.0 * c.q_dim() + 2.0 * c.kv_dim());
  const double ends = (c.head.tied ? 1 : 2) * dim * c.head_rows();
  const auto params = [&](double share) {
    const double matrices = all_gates ? 1 + 2 * share : 3 * share;
    return c.n_layers * (attention + dim * c.ffn_dim * matrices) + ends;
  };
  return params(channels) / params(1);
}

double head_flops(const ModelConfig& c) { return 2.0 * c.head_rows() * double(c.dim); }

double attention_flops(const ModelConfig& c, double pairs) { return 4.0 * c.q_dim() * pairs; }

double prefill_pairs(int64_t context, int window) {
  const auto triangle = [](int64_t n) { return 0.5 * static_cast<double>(n) * double(n + 1); };
  if (window == 0 || context <= window) return triangle(context);
  return triangle(window) + static_cast<double>(context - window) * window;
}

double prefill_pairs(const ModelConfig& c, int64_t context) {
  double pairs = 0;
  for (int layer = 0; layer < c.n_layers; ++layer)
    pairs += prefill_pairs(context, c.layer(layer).attention.window);
  return pairs;
}

}  // namespace tandem::model
