#pragma once
// One node of verification by residuals: a pure function of weights and of the numbers it draws
// with. Residuals are integers, like the weights they come from, so that sums do not depend on
// their order and every ISA, thread count and GPU accepts the same child; scaled to 62 bits before
// each subtraction, their rounding is that of doubles. And a rejected token is exactly gone: a
// child can be rejected only if its share exceeds its residual, which then becomes 0. Compiled
// without contraction.
//
// A node is reached with a probability p, 1 at the root, of which its children and its own last
// token take their parts. In whole units: the residual's total over its `unit` is p. A child drawn
// from D takes min(residual, unit * D) of it, whichever child that is; what it leaves is the next
// residual, and the unit shrinks by what it took. So the root's total and unit stay equal, and p
// stays 1.
#include <stdint.h>

#include "kernels/sample/weights.h"

namespace tandem {
namespace {

/// A number times 2^shift has 62 bits; it has 63 already in the one case of 2^22 equal weights.
constexpr int shift_of(uint64_t number) {
  const int zeros = __builtin_clzll(number);
  return zeros > 2 ? zeros - 2 : 0;
}

/// The part of its parent's probability that a child is reached with: min(1, weight / share).
struct Reach {
  uint64_t weight, share;

  constexpr bool is_nothing() const { return weight == 0; }
  constexpr double value() const {
    return weight >= share ? static_cast<double>(weight > 0)
                           : static_cast<double>(static_cast<int64_t>(weight)) /
                                 static_cast<double>(static_cast<int64_t>(share));
  }
};

/// Makes the weights of a distribution, scaled by 2^shift, those of a node reached with `reach`.
constexpr uint64_t reached_weight(uint64_t weight, int shift, double reach) {
  const double scale = reach * static_cast<double>(int64_t{1} << shift);
  return static_cast<uint64_t>(
      static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(weight)) * scale));
}

/// The distribution of the next token given the rejections so far: the target's at first, then the
/// rest of it. Until make() is called the weights may be those of a row, not written down yet.
struct Residual {
  uint64_t* weight;   // [n]
  uint64_t* next;     // [n], the distribution after the next rejection is built here
  const int32_t* id;  // [n] ascending; null: id[i] = i
  int n;
  uint64_t total;    // of the weights; an upper bound before make()
  uint64_t unit;     // what probability 1 is in them, at least the total and > 0
  RowWeights row{};  // x null: `weight` holds the weights
  double reach = 1;  // of the node, which the row's weights do not have yet

  int shift() const { return shift_of(unit); }
  /// Of a token of the row.
  uint64_t of_row(uint64_t own) const {
    return reach == 1.0 ? own : reached_weight(own, shift_of(row.total), reach);
  }
};

/// Where only a bound of the total is needed, or one token's weight, this need not be called.
inline void make(Residual& r) {
  if (r.row.x == nullptr) return;
  const Residual whole = r;
  uint64_t total = 0;
  each_weight(r.row.x, r.n, r.row.max, r.row.temperature, [&](int i, uint64_t own) {
    const uint64_t weight = whole.of_row(own);
    whole.weight[i] = weight;
    total += weight;
  });
  r.total = total;
  r.row.x = nullptr;
}

/// The weights of a row, all of them kept, at a node that is reached.
inline Residual residual_of_row(const RowWeights& row, int vocab, const Reach& reach,
                                uint64_t* weight, uint64_t* next) {
  Residual r{weight, next, nullptr, vocab, row.total, row.total, row, reach.value()};
  if (r.reach == 1.0 || row.total == 0) return r;
  // Above the sum, whose parts are rounded down after an error of 2^-52.
  const int shift = r.shift();
  const double total = static_cast<double>(static_cast<int64_t>(row.total)) * r.reach *
                       static_cast<double>(int64_t{1} << shift) * (1.0 + 0x1p-40);
  r.unit <<= shift;
  r.total = static_cast<uint64_t>(static_cast<int64_t>(total)) + 1;
  r.total = r.total < r.unit ? r.total : r.unit;
  return r;
}

/// The distribution that the next child was drawn from: the draft's, without the tokens tried
/// before. First come the tokens that its rule keeps, then the rest.
struct Proposal {
  double* weight;  // [V] whole, magnitude below 2^41: of kept tokens; negative of the rest; 0 of
                   // tokens tried. Null: `row` has them, until the first child is tried
  uint64_t left;   // sum of the kept ones; once it is 0 the rest are drawn
  uint64_t rest;   // sum of the others' magnitudes
  RowWeights row{};

  double at(int token) const {
    return weight != nullptr ? weight[token]
                             : static_cast<double>(static_cast<int64_t>(row.at(token)));
  }
};

/// A proposal's probabilities in units of which `unit` make 1.
struct Shares {
  double factor;

  constexpr Shares(uint64_t left, uint64_t rest, uint64_t unit)
      : factor(left > 0 ? static_cast<double>(unit) / static_cast<double>(left)
                        : -(static_cast<double>(unit) / static_cast<double>(rest))) {}
  /// Of a token that the proposal gives `weight`.
  constexpr uint64_t of(double weight) const {
    const double share = weight * factor;
#ifdef __CUDA_ARCH__
    return __double2ull_rz(share);  // 0 of negative ones
#else
    return share > 0.0 ? static_cast<uint64_t>(static_cast<int64_t>(share)) : 0;
#endif
  }
};

inline Shares shares_of(const Proposal& p, uint64_t unit) { return {p.left, p.rest, unit}; }

/// What a weight exceeds a share by.
constexpr uint64_t excess(uint64_t weight, uint64_t share) {
  return weight > share ? weight - share : 0;
}

/// Where a token's weight is; r.n if it has none.
inline int index_at(const Residual& r, int token) {
  if (r.id == nullptr) return token;
  int low = 0, high = r.n;
  while (low < high) {
    const int middle = (low + high) / 2;
    r.id[middle] < token ? low = middle + 1 : high = middle;
  }
  return low < r.n && r.id[low] == token ? low : r.n;
}

inline uint64_t weight_at(const Residual& r, int token) {
  if (r.row.x != nullptr) return r.of_row(r.row.at(token));
  const int at = index_at(r, token);
  return at < r.n ? r.weight[at] : 0;
}

/// Fills r.next with what exceeds the shares, scaled; returns its sum. Tokens tried before have
/// weight 0 here already, so their shares do not matter.
inline uint64_t subtract(const Residual& r, const Proposal& p, const Shares& shares) {
  const int shift = r.shift();
  uint64_t sum = 0;
  const auto take = [&](int i, double drawn) {
    r.next[i] = excess(r.weight[i] << shift, shares.of(drawn));
    sum += r.next[i];
  };
  if (p.weight == nullptr && r.id == nullptr)
    each_weight(p.row.x, r.n, p.row.max, p.row.temperature, [&](int i, uint64_t drawn) {
      take(i, static_cast<double>(static_cast<int64_t>(drawn)));
    });
  else if (r.id == nullptr)
    for (int i = 0; i < r.n; ++i) take(i, p.weight[i]);
  else
    for (int i = 0; i < r.n; ++i) take(i, p.at(r.id[i]));
  return sum;
}

/// Whether a unit that the next child leaves is within rounding of nothing: a rejection then has
/// probability 0, or as good. Shares are good to 2^-52 and cut to whole numbers, V of them: 2^-40
/// of the unit for V up to 2^22.
constexpr bool is_nothing(uint64_t left, uint64_t scaled_unit) { return left <= scaled_unit >> 40; }

/// coin < weight / share, for a coin of 53 bits.
constexpr bool accepts(double coin, uint64_t weight, uint64_t share) {
  using Wide = unsigned __int128;
  return static_cast<Wide>(static_cast<uint64_t>(coin * 0x1p53)) * share < static_cast<Wide>(weight)
                                                                               << 53;
}

/// A fixed child's distribution is that token alone.
enum class ChildKind { drawn, fixed };

/// The child that is tried next: what its token has in the residual, and what share of the unit it
/// was drawn with.
inline Reach reach_of(const Residual& r, const Proposal& p, int token, ChildKind kind) {
  const int shift = r.shift();
  const uint64_t unit = r.unit << shift;
  return {weight_at(r, token) << shift,
          kind == ChildKind::fixed ? unit : shares_of(p, unit).of(p.at(token))};
}

/// Whether the rejection of a child drawn and reached so can leave nothing. It leaves what the unit
/// exceeds the total by, and at least the distance of weight and share.
inline bool may_leave_nothing(const Residual& r, const Reach& of_child) {
  const int shift = r.shift();
  const uint64_t unit = r.unit << shift, outside = unit - (r.total << shift);
  const uint64_t apart = of_child.weight > of_child.share ? of_child.weight - of_child.share
                                                          : of_child.share - of_child.weight;
  return is_nothing((apart > outside ? apart : outside) / 2, unit);  // halved for its rounding
}

inline void take_remainder(Residual& r, uint64_t total, uint64_t unit) {
  uint64_t* const old = r.weight;
  r.weight = r.next;
  r.next = old;
  r.total = total;
  r.unit = unit;
}

inline void remove(Proposal& p, int token) {
  const double weight = p.at(token);
  if (weight > 0)
    p.left -= static_cast<uint64_t>(weight);
  else
    p.rest -= static_cast<uint64_t>(-weight);
  if (p.weight != nullptr) p.weight[token] = 0;
}

/// What a rejection leaves of a unit.
struct Rejection {
  uint64_t left, unit;

  /// The residual then stays as it was.
  constexpr bool is_nothing() const { return tandem::is_nothing(left, unit); }
};

/// Takes the part of a child out of the residual, and the child out of the proposal.
inline Rejection reject(Residual& r, Proposal& p, int token, ChildKind kind) {
  make(r);
  if (kind == ChildKind::fixed) {
    const int at = index_at(r, token);
    const uint64_t taken = at < r.n ? r.weight[at] : 0;
    const Rejection rejection{r.unit - taken, r.unit};
    if (rejection.is_nothing() || taken == 0) return rejection;
    r.weight[at] = 0;
    r.total -= taken;
    r.unit -= taken;
    return rejection;
  }
  const int shift = r.shift();
  const uint64_t unit = r.unit << shift, total = r.total << shift;
  const uint64_t remainder = subtract(r, p, shares_of(p, unit));
  const Rejection rejection{unit - (total - remainder), unit};
  if (!rejection.is_nothing()) take_remainder(r, remainder, rejection.left);
  remove(p, token);
  return rejection;
}

/// Tries the children in the order in which they were drawn; returns which one is accepted, or
/// n_children, and then the token is to be drawn from `r`. Child i is tried with coin(i).
/// A child rejected by rounding alone, since nothing else is left, is accepted, and counted.
template <class Coin, class Kind>
int try_children(Residual& r, Proposal& p, const int32_t* children, int n_children,
                 const Kind& kind, const Coin& coin, int32_t* n_rounded) {
  for (int i = 0; i < n_children; ++i) {
    const Reach reach = reach_of(r, p, children[i], kind(i));
    if (accepts(coin(i), reach.weight, reach.share)) return i;
    if (reject(r, p, children[i], kind(i)).is_nothing() && reach.weight > 0) {
      ++*n_rounded;
      return i;
    }
  }
  return n_children;
}

/// Probabilities that child i, drawn from the proposal, is the accepted one, given the children
/// before it: with weight 1 at first, sum of min(residual, proposal); then the weight falls by what
/// child i itself would be accepted with. Their mean over drawn children is the acceptance vector.
inline void residual_chances(double* chance, Residual& r, Proposal& p, const int32_t* children,
                             int n_children) {
  double weight = 1;
  for (int i = 0; i < n_children; ++i) {
    chance[i] = 0;
    if (weight == 0) continue;
    const Reach reach = reach_of(r, p, children[i], ChildKind::drawn);
    const Rejection rejection = reject(r, p, children[i], ChildKind::drawn);
    chance[i] =
        weight * (1.0 - static_cast<double>(rejection.left) / static_cast<double>(rejection.unit));
    weight = rejection.is_nothing() ? 0.0 : weight * (1.0 - reach.value());
  }
}

}  // namespace
}  // namespace tandem
