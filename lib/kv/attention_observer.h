#pragma once
#include <cstdint>
#include <functional>

#include "kv/list_attention.h"

namespace tandem::kv {

class Cache;

/// Sees the attention of extend steps, on the CPU: for measurements.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  /// A layer of the step has been attended. Cache::attend_as may be asked what other readings would
  /// have made of it.
  /// shapes   q [R, n_heads, head_dim]
  virtual void attended(Cache& cache, int layer, const Step& step, const Tensor& q) = 0;
};

/// Sees the list of each row and query head while it lasts, and the first token that the row reads
/// for any query, after those that lists choose among. Called by several threads at once.
using ChoiceVisitor =
    std::function<void(int row, int head, const KeyList& list, int32_t fixed_from)>;

/// Where another reading's result of a layer goes.
struct AttendAs {
  float* o;    // [R, n_heads, head_dim]
  float* lse;  // [R, n_heads] natural log, scale and weights included
  ChoiceVisitor on_list = {};
};

}  // namespace tandem::kv
