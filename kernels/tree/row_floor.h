#pragma once
// The floor that a row of logits sets for tokens. Unnamed: included by sources with per-ISA flags
// and by CUDA's.
#include <math.h>

#include "kernels/tree/verify_trees.h"

#ifdef __CUDACC__
#define TANDEM_ON_BOTH __host__ __device__
#else
#define TANDEM_ON_BOTH
#endif

namespace tandem {
namespace {

/// Probabilities are quotients of whole weights (weights.h), so that CPUs and GPUs decide the same,
/// but for typical's entropy, whose terms are summed in doubles.
/// entropy  sum w y over the row, y = (x - max) / temperature and w its weight; of typical
TANDEM_ON_BOTH inline double row_floor(AcceptBy rule, const FloorRule& floor, uint64_t total,
                                       double entropy) {
  if (rule != AcceptBy::typical) return floor.probability;
  const double sum = static_cast<double>(total);
  const double nats = log(sum * 0x1p-40) - entropy / sum;
  const double typical = floor.delta * exp(-nats);
  return typical < floor.probability ? typical : floor.probability;
}

}  // namespace
}  // namespace tandem
