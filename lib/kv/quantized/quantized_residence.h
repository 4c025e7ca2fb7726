#pragma once
#include <memory>

#include "kv/quantized/quantized_attention.h"
#include "kv/quantized/quantized_keys.h"
#include "kv/residence.h"

namespace tandem::kv {

/// Some layers of the first page group in eight to four bits (kv/quantized/quantized_keys.h).
struct QuantizedSpec {
  QuantizedKeys::Spec keys;
  Geometry geometry;
  AttentionBounds bounds;  // of extend steps
};
void plan_quantized(const QuantizedSpec& spec, MemoryPlan& plan);
/// queries  the newest of each sequence; outlives the residence
std::unique_ptr<Residence> make_quantized(const QuantizedSpec& spec, PageGroups& groups,
                                          Arena& arena, const QueryRing& queries);

}  // namespace tandem::kv
