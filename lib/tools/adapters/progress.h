#pragma once
#include <functional>

#include "base/error.h"

namespace tandem::tools {

/// Called with the weights that have been read since the last call; false ends the work.
using WeightProgress = std::function<bool(int64_t n)>;

/// errors   kind interrupted, if the progress says so
inline void add_read(const WeightProgress& progress, int64_t n) {
  if (progress && !progress(n)) throw Error(ErrorKind::interrupted, "", "interrupted");
}

/// Weights that are read at a time.
inline constexpr int64_t kWeightPiece = int64_t{1} << 20;

}  // namespace tandem::tools
