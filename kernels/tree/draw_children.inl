#include "kernels/tree/draw_children.h"

#include "kernels/sample/heap_sort.h"
#include "kernels/sample/kept.h"
#include "kernels/simd/philox_lanes.h"
#include "kernels/tree/children_workspace.h"
#include "kernels/tree/race.h"

namespace tandem {
namespace {

constexpr int kRaceBlock = 4 * kPhiloxLanes;  // tokens whose numbers are made together

inline void race_words(PhiloxWords& out, const RaceNames& names, uint32_t first_block) {
  philox_lanes(out, names.round.seed, first_block, names.round.sequence, names.round.position,
               last_word(names));
}

inline bool is_after(Contender a, Contender b) {
  return a.key != b.key ? a.key > b.key : a.id > b.id;
}

/// The best so far of a race. Contenders gather unsorted; when there are many, all but the wanted
/// ones go, and the last of these sets the bar for those to come.
struct Leaders {
  Contender* of;
  int wanted, n, room;
  double bar;  // keys must be below

  void add(double key, int32_t id) {
    of[n++] = {key, id};
    if (n == room) settle();
  }
  void settle() {
    heap_sort(of, n);
    if (n < wanted) return;
    n = wanted;
    bar = of[n - 1].key;
  }
};

inline Leaders start(Contender* at, int wanted, int n_runners) {
  const int spare = wanted > 64 ? wanted : 64;
  const int room = wanted + spare < n_runners ? wanted + spare : n_runners;
  return {at, wanted, 0, room, __builtin_inf()};
}

// What runs by which weights. fill() gives those of the n tokens from `begin` on, whose whole part
// counts, and 0 to the others of a block and to tokens that do not take part; false: none does.

/// All tokens of positive weight, which are summed up.
struct AllTokens {
  const float* logits;
  float max, temperature;
  uint64_t total = 0;

  bool fill(float* scaled, int begin, int n) {
    float x[kRaceBlock];
    memcpy(x, logits + begin, static_cast<size_t>(n) * sizeof(float));
    for (int i = n; i < kRaceBlock; ++i) x[i] = -__builtin_inff();
    for (int i = 0; i < kRaceBlock; ++i) scaled[i] = scaled_exp((x[i] - max) / temperature);
    uint64_t sum = 0;
    for (int i = 0; i < kRaceBlock; ++i) {
      scaled[i] = scaled[i] < 1.0f ? 0.0f : scaled[i];
      sum += whole_part(scaled[i]);
    }
    total += sum;
    return true;
  }
};

/// Tokens by weights made before.
struct KeptTokens {
  const uint64_t* weight;

  bool fill(float* scaled, int begin, int n) const {
    uint64_t any = 0;
    for (int i = 0; i < n; ++i) any |= weight[begin + i];
    if (any == 0) return false;
    for (int i = 0; i < n; ++i)
      scaled[i] = static_cast<float>(static_cast<int64_t>(weight[begin + i]));
    for (int i = n; i < kRaceBlock; ++i) scaled[i] = 0.0f;
    return true;
  }
};

/// All tokens but those whose logit is inf, with weight 1 at least.
struct OtherTokens {
  const float* logits;
  float max, temperature;

  bool fill(float* scaled, int begin, int n) const {
    float below[kRaceBlock];
    for (int i = 0; i < n; ++i) below[i] = logits[begin + i] - max;
    for (int i = n; i < kRaceBlock; ++i) below[i] = __builtin_inff();
    for (int i = 0; i < kRaceBlock; ++i)
      scaled[i] = scaled_exp((below[i] < 0.0f ? below[i] : 0.0f) / temperature);
    for (int i = 0; i < kRaceBlock; ++i) {
      const float weight = scaled[i] < 1.0f ? 1.0f : scaled[i];
      scaled[i] = below[i] < __builtin_inff() ? weight : 0.0f;
    }
    return true;
  }
};

template <class Tokens>
void run(Tokens&& tokens, int vocab, const RaceNames& names, Leaders& leaders) {
  PhiloxWords words;
  float scaled[kRaceBlock], least[kRaceBlock];
  for (int begin = 0; begin < vocab; begin += kRaceBlock) {
    const int n = vocab - begin < kRaceBlock ? vocab - begin : kRaceBlock;
    const auto block = static_cast<uint32_t>(begin) / 4;
    if (!tokens.fill(scaled, begin, n)) continue;
    race_words(words, names, block);
    const uint32_t* leading = words.w[0];
    // A look in f32 spares nearly all tokens the rest: E is at least its leading bits, and the
    // weight is at most `scaled`. The margin is for the roundings, of 2^-24 each.
    const float bar = static_cast<float>(leaders.bar * (1.0 + 0x1p-18));
    uint32_t hopeful = 0;
    for (int i = 0; i < kRaceBlock; ++i) {
      least[i] = static_cast<float>(static_cast<int32_t>(leading[i] >> 1)) * 0x1p-31f;
      hopeful |= static_cast<uint32_t>(least[i] <= bar * scaled[i]);
    }
    if (!hopeful) continue;
    for (int i = 0; i < n; ++i) {
      if (!(least[i] <= bar * scaled[i])) continue;
      PhiloxWords later;
      race_words(later, names, (block + static_cast<uint32_t>(i % kPhiloxLanes)) | kMoreBits);
      const double e = exponential_of(leading[i], later.w[i / kPhiloxLanes][0]);
      // A token that does not take part has weight 0 and key inf.
      const double key = e / static_cast<double>(static_cast<int64_t>(scaled[i]));
      if (key < leaders.bar) leaders.add(key, begin + i);
    }
  }
  leaders.settle();
}

/// The same for few tokens.
inline void run_few(const Candidates& c, const uint64_t* weight, const RaceNames& names,
                    Leaders& leaders) {
  for (int i = 0; i < c.n; ++i) {
    if (weight[i] == 0) continue;
    const double key = exponential_of_token(names, c.token(i)) /
                       static_cast<double>(static_cast<int64_t>(weight[i]));
    if (key < leaders.bar) leaders.add(key, c.token(i));
  }
  leaders.settle();
}

/// A row of logits and whose children are drawn from it.
struct Race {
  const KeepRule& rule;
  const float* logits;
  int vocab;
  RaceNames names;
  RowSum* sum;
};

/// What the rule keeps: the wanted ones, or all if these are fewer, best first into w.contenders;
/// returns their number, -1 for a row without meaning.
inline int race_kept(const Race& race, int wanted, const ChildrenWorkspace& w) {
  if (!has_cuts(race.rule, race.vocab)) {
    const float max = row_max(race.logits, race.vocab);
    if (max != max) return -1;
    Leaders all = start(w.contenders, wanted, race.vocab);
    AllTokens tokens{race.logits, max, race.rule.temperature};
    run(tokens, race.vocab, race.names, all);
    *race.sum = {max, tokens.total};
    return all.n;
  }
  const Candidates c = keep(race.rule, race.logits, race.vocab, w.select);
  if (c.n == 0) return -1;
  Leaders kept = start(w.contenders, wanted, c.n);
  if (c.id == nullptr)
    run(KeptTokens{w.select.weight}, race.vocab, race.names, kept);
  else
    run_few(c, w.select.weight, race.names, kept);
  return kept.n;
}

/// The rest when the first n of w.contenders are drawn, into the places after them.
inline void race_rest(const Race& race, int n, int wanted, const ChildrenWorkspace& w) {
  float* const x = w.select.penalized;
  const float max = row_max(race.logits, race.vocab);
  if (race.logits != x) memcpy(x, race.logits, static_cast<size_t>(race.vocab) * sizeof(float));
  for (int i = 0; i < n; ++i) x[w.contenders[i].id] = __builtin_inff();
  Leaders rest = start(w.contenders + n, wanted - n, race.vocab - n);
  run(OtherTokens{x, max, race.rule.temperature}, race.vocab, race.names, rest);
}

/// The largest logits, best first, into w.contenders; false for a row without meaning.
inline bool rank_row(const float* x, int vocab, int wanted, const ChildrenWorkspace& w) {
  if (!scan(x, vocab, w.select.block_max).is_valid) return false;
  const int n = keep_top(x, vocab, wanted, w.select);
  for (int i = 0; i < n; ++i)
    w.contenders[i] = {-static_cast<double>(order_key(w.select.top[i])), w.select.id[i]};
  heap_sort(w.contenders, n);
  return true;
}

/// The row as the rule has it, in w.penalized if it changes.
inline const float* penalized_row(const DrawChildrenParams& p, int r, const Workspace& w) {
  const ParentRow& parent = p.parents[r];
  const float* const row = p.logits + static_cast<int64_t>(r) * p.vocab;
  const float penalty = p.rule.repetition_penalty;
  if (penalty == 1.0f) return row;
  memcpy(w.penalized, row, static_cast<size_t>(p.vocab) * sizeof(float));
  if (p.seen != nullptr) {
    const int begin = p.seen_begin[parent.seq];
    penalize(w.penalized, row, p.seen + begin, p.seen_begin[parent.seq + 1] - begin, penalty);
  }
  if (p.parent == nullptr) return w.penalized;
  const int begin = p.node_begin[parent.seq];
  for (int node = parent.node; p.parent[begin + node] >= 0; node = p.parent[begin + node])
    if (p.tokens[begin + node] != kInvalidToken)
      penalize(w.penalized, row, p.tokens + begin + node, 1, penalty);
  return w.penalized;
}

void draw_row(const DrawChildrenParams& p, int r, const ChildrenWorkspace& w) {
  const ParentRow& parent = p.parents[r];
  int32_t* tokens = p.tokens + parent.first_child;
  const int wanted = parent.n_children;
  RowSum sum{0, 0};
  if (p.sums != nullptr) p.sums[r] = sum;
  if (wanted == 0) return;
  const float* x = penalized_row(p, r, w.select);
  bool is_valid;
  if (p.rule.temperature == 0.0f) {
    is_valid = rank_row(x, p.vocab, wanted, w);
  } else {
    const RaceNames names{names_of(p.numbers, parent.seq), static_cast<uint32_t>(parent.node)};
    const Race race{p.rule, x, p.vocab, names, &sum};
    const int n = race_kept(race, wanted, w);
    if (p.sums != nullptr && p.rule.repetition_penalty == 1.0f) p.sums[r] = sum;
    is_valid = n >= 0;
    if (is_valid && n < wanted) race_rest(race, n, wanted, w);
  }
  for (int i = 0; i < wanted; ++i) tokens[i] = is_valid ? w.contenders[i].id : kInvalidToken;
}

}  // namespace

void TANDEM_ISA_FN(draw_children)(const DrawChildrenParams& p, Range rows) {
  const ChildrenWorkspace w = lay_out_children(p.workspace, p.vocab);
  for (int r = rows.begin; r < rows.end; ++r) draw_row(p, r, w);
}

}  // namespace tandem
