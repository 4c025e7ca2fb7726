#pragma once
// One node of verification by residuals: a pure function of weights and of the numbers it draws
// with. Residuals are integers, like the weights they come from, so that sums do not depend on
// their order and every ISA, thread count and GPU accepts the same child; scaled to 62 bits before
// each subtraction, their rounding is that of doubles. And a rejected token is exactly gone: a
// child can be rejected only if its share exceeds its residual, which then becomes 0. Compiled
// without contraction.
#include <stdint.h>

namespace tandem {
namespace {

/// The total times 2^shift has 62 bits; it has 63 already in the one case of 2^22 equal weights.
constexpr int shift_of(uint64_t total) {
  const int zeros = __builtin_clzll(total);
  return zeros > 2 ? zeros - 2 : 0;
}

/// The distribution of the next token given the rejections so far: the target's at first, then the
/// rest of it.
struct Residual {
  uint64_t* weight;   // [n]
  uint64_t* next;     // [n], the distribution after the next rejection is built here
  const int32_t* id;  // [n] ascending; null: id[i] = i
  int n;
  uint64_t total;  // of the weights, > 0

  int shift() const { return shift_of(total); }
  uint64_t scaled_total() const { return total << shift(); }
};

/// The distribution that the next child was drawn from: the draft's, without the tokens tried
/// before.
struct Proposal {
  double* weight;  // [V] whole, below 2^41; 0 for tokens tried
  uint64_t left;   // their sum; once it is 0 tokens not tried are equally likely
  int n_untried;
};

/// A proposal's probabilities in units of which `total` make 1.
struct Shares {
  double factor;
  uint64_t each;  // of tokens not tried, where these are equally likely

  constexpr Shares(uint64_t left, int n_untried, uint64_t total)
      : factor(left > 0 ? static_cast<double>(total) / static_cast<double>(left) : 0.0),
        each(left > 0 ? 0 : total / static_cast<uint64_t>(n_untried)) {}
  /// Of a token that the proposal gives `weight`.
  constexpr uint64_t of(double weight) const {
    return each + static_cast<uint64_t>(static_cast<int64_t>(weight * factor));
  }
};

inline Shares shares_of(const Proposal& p, uint64_t total) { return {p.left, p.n_untried, total}; }

/// What a weight exceeds a share by.
constexpr uint64_t excess(uint64_t weight, uint64_t share) {
  return weight > share ? weight - share : 0;
}

inline uint64_t weight_at(const Residual& r, int token) {
  if (r.id == nullptr) return r.weight[token];
  int low = 0, high = r.n;
  while (low < high) {
    const int middle = (low + high) / 2;
    r.id[middle] < token ? low = middle + 1 : high = middle;
  }
  return low < r.n && r.id[low] == token ? r.weight[low] : 0;
}

/// Fills r.next with what exceeds the shares, scaled; returns its sum. Tokens tried before have
/// weight 0 here already, so their shares do not matter.
inline uint64_t subtract(const Residual& r, const Proposal& p, const Shares& shares) {
  const int shift = r.shift();
  uint64_t sum = 0;
  const auto pass = [&](auto token) {
    for (int i = 0; i < r.n; ++i) {
      r.next[i] = excess(r.weight[i] << shift, shares.of(p.weight[token(i)]));
      sum += r.next[i];
    }
  };
  if (r.id == nullptr)
    pass([](int i) { return i; });
  else
    pass([&](int i) { return r.id[i]; });
  return sum;
}

/// Whether the remainder is within rounding of nothing: a rejection then has probability 0, or as
/// good. Shares are good to 2^-52 and cut to whole units, V of them: 2^-40 of the total for V up to
/// 2^22.
constexpr bool is_nothing(uint64_t remainder, uint64_t scaled_total) {
  return remainder <= scaled_total >> 40;
}

inline void take_remainder(Residual& r, uint64_t sum) {
  uint64_t* const old = r.weight;
  r.weight = r.next;
  r.next = old;
  r.total = sum;
}

inline void remove(Proposal& p, int token) {
  p.left -= static_cast<uint64_t>(p.weight[token]);
  p.weight[token] = 0;
  --p.n_untried;
}

/// coin < weight / share, for a coin of 53 bits.
constexpr bool accepts(double coin, uint64_t weight, uint64_t share) {
  using Wide = unsigned __int128;
  return static_cast<Wide>(static_cast<uint64_t>(coin * 0x1p53)) * share < static_cast<Wide>(weight)
                                                                               << 53;
}

/// Tries the children in the order in which they were drawn; returns which one is accepted, or
/// n_children, and then the token is to be drawn from `r`. Child i is tried with coin(i).
/// A child rejected by rounding alone, since nothing else is left, is accepted, and counted.
template <class Coin>
int try_children(Residual& r, Proposal& p, const int32_t* children, int n_children,
                 const Coin& coin, int32_t* n_rounded) {
  for (int i = 0; i < n_children; ++i) {
    const int token = children[i];
    const Shares shares = shares_of(p, r.scaled_total());
    const uint64_t weight = weight_at(r, token) << r.shift();
    if (accepts(coin(i), weight, shares.of(p.weight[token]))) return i;
    const uint64_t remainder = subtract(r, p, shares);
    const bool rounded = is_nothing(remainder, r.scaled_total());
    if (rounded && weight > 0) {
      ++*n_rounded;
      return i;
    }
    if (!rounded) take_remainder(r, remainder);
    remove(p, token);
  }
  return n_children;
}

/// Probabilities that child i, drawn from the proposal, is the accepted one, given the children
/// before it: with weight 1 at first, sum of min(residual, proposal); then the weight falls by what
/// child i itself would be accepted with. Their mean over drawn children is the acceptance vector.
inline void residual_chances(double* chance, Residual& r, Proposal& p, const int32_t* children,
                             int n_children) {
  double reach = 1;
  for (int i = 0; i < n_children; ++i) {
    chance[i] = 0;
    if (reach == 0) continue;
    const Shares shares = shares_of(p, r.scaled_total());
    const auto total = static_cast<double>(r.scaled_total());
    const double weight = static_cast<double>(weight_at(r, children[i]) << r.shift());
    const auto share = static_cast<double>(shares.of(p.weight[children[i]]));
    const uint64_t remainder = subtract(r, p, shares);
    chance[i] = reach * (1.0 - static_cast<double>(remainder) / total);
    reach *= weight < share ? 1.0 - weight / share : 0.0;
    if (is_nothing(remainder, r.scaled_total())) {
      reach = 0;
    } else {
      take_remainder(r, remainder);
      remove(p, children[i]);
    }
  }
}

}  // namespace
}  // namespace tandem
