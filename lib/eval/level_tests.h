#pragma once
#include <array>
#include <functional>
#include <string_view>

#include "speculate/round/round.h"

// Tests that kept tokens follow the distribution that verified them.
namespace tandem::eval {

/// Compares a sum over tokens with its expectation, token by token, given the tokens before.
struct TokenTest {
  double found = 0, expected = 0, variance = 0;

  /// Probability of a sum at least as far from the expectation, by the normal distribution. Below a
  /// variance of 100 it is Freedman's bound for martingales.
  double p() const;
};

/// Tests of all tokens that one level of speculation keeps. Given the text before it, a token of a
/// lossless rule follows the row of logits that verified it. So mean and variance of every function
/// of the token are known, and no second sample is needed. A fault that moves 1 % of the
/// probability shows after some 40,000 tokens. Functions may use the draft's row, since it depends
/// only on the text before.
/// source   Freedman, On tail probabilities for martingales (1975)
class LevelTests {
 public:
  /// The draft prefers a token if it gives it more probability than the verifying model. If
  /// nothing is drawn, it prefers the tokens that it proposes. In a row: after another likeliest
  /// token.
  static constexpr std::array<std::string_view, 4> kNames = {
      "tokens that the draft prefers", "likeliest tokens", "likeliest tokens in a row",
      "order of token ids"};
  struct Sums {
    int64_t tokens = 0;
    std::array<TokenTest, kNames.size()> tests;
  };

  /// draws   true if proposals are drawn from rows of a draft
  explicit LevelTests(bool draws) : draws_(draws) {}

  /// Adds the tokens of a round on the CPU that is over; none at temperature 0.
  /// logits   rows of all nodes, by the model that verified them
  void add(const speculate::Round& round, const Tensor& logits);
  /// A hook of RoundOptions and WithinOptions that calls add. This must outlive the rounds.
  std::function<void(const speculate::Round&, const Tensor&)> hook() {
    return [this](const speculate::Round& round, const Tensor& logits) { add(round, logits); };
  }

  void restart() { sums_ = {}; }
  /// At all temperatures together.
  const Sums& sums() const { return sums_; }

 private:
  bool draws_;
  Sums sums_;
};

}  // namespace tandem::eval
