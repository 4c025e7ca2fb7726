#pragma once
#include <cstdint>

#include "model/weights/layer_weights.h"
#include "tensor/tensor.h"

namespace tandem::kv {
struct Step;
}

namespace tandem::model {

/// Additions to the products of a layer's matrices: adapters that are trained, or served apart from
/// the weights. Attached to a model (Transformer::attach), it is called after each dense product;
/// for a model without one that is a comparison with null.
class SideProducts {
 public:
  virtual ~SideProducts() = default;

  /// The rows that follow are those of this step.
  virtual void enter(const kv::Step& /*step*/) {}
  /// Whether it changes products of a matrix: if not, none of the calls below comes, and what may
  /// be fused with the product is.
  virtual bool changes(int /*layer*/, Role /*of*/) const { return true; }
  /// Where the product of a matrix that ends in the residual stream goes first, if add() must see
  /// it apart; empty: straight into the stream.
  /// shapes   [rows, dim] f32
  virtual Tensor apart(int layer, Role of, int64_t rows) = 0;
  /// Changes y, which is x W^T + b; or where o or down were not apart, has had that added.
  /// shapes   x [rows, in] in the compute type, y [rows, out]
  /// sum      [rows, out] f32 that y must be added to, if it was apart, or empty
  virtual void add(int layer, Role of, const Tensor& y, const Tensor& x, const Tensor& sum) = 0;
};

}  // namespace tandem::model
