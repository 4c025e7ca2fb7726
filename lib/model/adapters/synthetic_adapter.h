#pragma once
#include "model/adapters/any_adapter.h"

namespace tandem::model {

/// The shape of an adapter whose numbers mean nothing, for measurements.
struct SyntheticAdapter {
  bool low_rank = false;
  // Of slices, the share of heads of o, and of channels of down and up, that each layer has:
  double o = 0, down = 0, up = 0;
  int rank = 0;  // of low-rank factors of q, k, v, up and down
};

/// Seeded numbers as fine-tuning leaves them: channels anywhere, values of the weights' size.
/// base     that it is of
NamedAdapter synthetic_adapter(const SyntheticAdapter& shape, const std::string& name,
                               const ModelConfig& config, const AdapterBase& base, uint64_t seed);

}  // namespace tandem::model
