#pragma once
// What a row of logits asks of tokens by the rules with floors, on the CPU. Unnamed: included by
// sources with per-ISA flags.
#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"
#include "kernels/tree/row_floor.h"

namespace tandem {
namespace {

class FloorOf {
 public:
  FloorOf(AcceptBy rule, const FloorRule& floor, const float* row, int vocab)
      : row_(row), temperature_(floor.temperature), max_(row_max(row, vocab)) {
    has_meaning_ = max_ < INFINITY && max_ > -INFINITY;
    if (!has_meaning_) return;
    total_ = sum_weights(row, vocab, max_, temperature_);
    double entropy = 0;
    if (rule == AcceptBy::typical)
      each_weight(row, vocab, max_, temperature_, [&](int i, uint64_t w) {
        if (w > 0) entropy += static_cast<double>(w) * ((row[i] - max_) / temperature_);
      });
    if (rule == AcceptBy::floor_or_argmax)
      for (best_ = 0; row[best_] != max_;) ++best_;
    least_ = row_floor(rule, floor, total_, entropy) * static_cast<double>(total_);
  }

  bool passes(int token) const {
    if (!has_meaning_) return false;
    const uint64_t weight = weight_of((row_[token] - max_) / temperature_);
    return token == best_ || static_cast<double>(weight) >= least_;
  }

 private:
  const float* row_;
  float temperature_, max_;
  bool has_meaning_;
  uint64_t total_ = 0;
  double least_ = 0;
  int best_ = -1;
};

}  // namespace
}  // namespace tandem
