#pragma once
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace tandem::speculate {

/// What a token is drawn from: the softmax of logits at a temperature, at 0 all on the first of the
/// best tokens.
std::vector<double> distribution(std::span<const float> logits, double temperature);

/// The sum over tokens of the lesser of two probabilities: how often a token that is drawn from one
/// is accepted by the other, over the draw and the coin. Of distributions at temperature 0 it is 1
/// or 0.
/// source   Leviathan et al., arXiv 2211.17192, theorem 3.5
double overlap(std::span<const double> p, std::span<const double> q);

/// Distributions of rows of logits at some temperatures.
class RowDistributions {
 public:
  /// errors   kind numeric: logits that are not numbers
  RowDistributions(const Tensor& logits, std::span<const double> temperatures);

  /// With each row of a draft's logits, at the same temperatures.
  /// shapes   logits [rows, vocab]; result [temperatures][rows]
  /// errors   kind numeric: logits that are not numbers
  std::vector<std::vector<double>> overlaps(const Tensor& logits) const;

 private:
  std::vector<double> temperatures_;
  std::vector<std::vector<std::vector<double>>> rows_;  // [temperatures][rows][vocab]
};

}  // namespace tandem::speculate
