#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/adapters/any_adapter.h"
#include "model/forward/side_products.h"
#include "model/weights/weights.h"

namespace tandem::model {

// Parts that an adapter adds to a layer's products (kLayerStacks), as kernels read them. Of slices
// (S2FT): rows of qkv and gate_up, or columns of o and down, one part a matrix. Of low-rank
// factors: one part of all first factors, and one of every second factor.

enum class PartKind : uint8_t {
  slices,  // rows [n, in] for dots into y, or of o and down columns [n, out] for sums of x
  first,   // all first factors, [n, in], for dots into the inner activations
  second,  // a second factor transposed, [n, out of its weight], for sums of those
};
inline constexpr int kSecondParts = 3;
/// Places of a matrix's parts: slices, first, and the second factors of its weights in order.
inline constexpr int kMatrixParts = 2 + kSecondParts;

/// Of one adapter: a part, without its numbers.
struct PartShape {
  int layer = 0;
  Role of = Role::qkv;
  PartKind kind = PartKind::slices;
  int which = 0;  // of second factors: the role's place in the stack
  int64_t n = 0, width = 0;

  /// Its place among the parts of its matrix.
  int place() const { return static_cast<int>(kind) + which; }
  int64_t numbers() const { return n * width; }
};

/// All parts of an adapter.
/// errors   kind recipe: DoRA, which scales products as well
std::vector<PartShape> part_shapes(const NamedAdapter& adapter, const ModelConfig& config);

struct PartNumbers {
  std::vector<int32_t> index;  // [n] rows of y, columns of x or of the inner activations
  std::vector<float> values;   // [n, width]
};

/// What the adapter adds: of slices its values less those of the base before other adapters were
/// merged into it, of low-rank factors gamma in the second; times its weight.
/// base     the weights that it changes
/// errors   kind input: files that can no longer be read
PartNumbers part_numbers(const NamedAdapter& adapter, const PartShape& shape,
                         const ModelConfig& config, const WeightSource& base);

/// Rows or columns of a packed matrix that an adapter has slices of.
std::vector<int32_t> slice_features(const AnyAdapter& adapter, const PartShape& shape,
                                    const ModelConfig& config);
/// The base's values at the slices of an adapter.
/// shapes   [n, width], as PartNumbers
std::vector<float> base_values(const AnyAdapter& adapter, const PartShape& shape,
                               const ModelConfig& config, const WeightSource& base);
/// The same of the adapter's own values.
std::vector<float> slice_values(const AnyAdapter& adapter, const PartShape& shape);

/// [rows, columns] as [columns, rows].
std::vector<float> transposed(std::span<const float> values, int64_t rows, int64_t columns);

/// Bytes of a part, or of a table of parts, in memory that an arena gives for several.
constexpr size_t aligned_part(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace tandem::model
