#include "speculate/plan/model_costs.h"

#include <algorithm>

#include "base/convert.h"
#include "model/spec/roles.h"
#include "model/spec/weight_formats.h"
#include "model/spec/work.h"

namespace tandem::speculate {

double ModelCosts::keys_seen(double context) const {
  if (n_sliding == 0) return context;
  const double sliding = std::min(context, static_cast<double>(window));
  return ((n_layers - n_sliding) * context + n_sliding * sliding) / n_layers;
}

ModelCosts costs_of(const model::ModelConfig& c, DType dtype) {
  ModelCosts costs;
  costs.element_bytes = static_cast<int>(dtype_bytes(dtype));
  costs.product_flops = model::layer_flops(c) + model::head_flops(c);
  const auto add = [&](model::MatrixId id) {
    const io::Shape shape = model::shape_of(id.role, c);
    costs.product_bytes +=
        static_cast<double>(matrix_bytes(model::stored_as(c, id, dtype), shape[0], shape[1]));
  };
  for (int layer = 0; layer < c.n_layers; ++layer)
    for (const model::Role role : model::kLayerRoles) add({role, layer});
  add({model::Role::head});
  costs.memory_bytes = static_cast<double>(model::weight_bytes(c, dtype));
  costs.kv_bytes = 2.0 * c.n_layers * c.kv_dim() * costs.element_bytes;
  costs.key_flops = model::attention_flops(c, c.n_layers);
  costs.n_layers = c.n_layers;
  costs.n_kv_heads = c.n_kv_heads;
  costs.head_dim = c.head_dim;
  costs.dim = c.dim;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const int window = c.layer(layer).attention.window;
    costs.window = std::max(costs.window, window);
    costs.n_sliding += window > 0 ? 1 : 0;
  }
  return costs;
}

}  // namespace tandem::speculate
