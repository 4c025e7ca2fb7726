#pragma once
#include <array>
#include <functional>
#include <string_view>

#include "speculate/round/round.h"

// Whether tokens that speculation keeps follow the distribution that verified them.
namespace tandem::eval {

/// Compares a sum over tokens with its expectation, token by token, given the tokens before.
struct TokenTest {
  double found = 0, expected = 0, variance = 0;

  /// Probability of a sum at least as far from the expectation: by the normal distribution, or by
  /// Freedman's bound for martingales where the variance is below 100.
  double p() const;
};

/// Tests of all tokens that one level of speculation keeps. Given the text before it, a token of a
/// lossless rule follows the row of the model that verified it, so the mean and variance of every
/// function of the token are known: no second sample is needed. A fault that moves 1 % of the
/// probability shows after some 40,000 tokens. Functions may use the draft's row, since it depends
/// only on the text before.
/// source   Freedman, On tail probabilities for martingales (1975)
class LevelTests {
 public:
  /// Tokens that the draft gives more probability than the model that verifies, or that it proposed
  /// if nothing is drawn; the likeliest token; the likeliest after the likeliest; the place of a
  /// token among the ids.
  static constexpr std::array<std::string_view, 4> kNames = {
      "tokens that the draft prefers", "likeliest tokens", "likeliest tokens in a row",
      "order of token ids"};
  struct Sums {
    int64_t tokens = 0;
    std::array<TokenTest, kNames.size()> tests;
  };

  /// draws   whether proposals are drawn from rows of a draft
  explicit LevelTests(bool draws) : draws_(draws) {}

  /// Adds the tokens of a round on the CPU that is over; none at temperature 0.
  /// logits   of all nodes, by the model that verified them
  void add(const speculate::Round& round, const Tensor& logits);
  /// The same as a hook of RoundOptions and WithinOptions. This must outlive the rounds.
  std::function<void(const speculate::Round&, const Tensor&)> hook() {
    return [this](const speculate::Round& round, const Tensor& logits) { add(round, logits); };
  }

  /// At all temperatures together.
  const Sums& sums() const { return sums_; }

 private:
  bool draws_;
  Sums sums_;
};

}  // namespace tandem::eval
