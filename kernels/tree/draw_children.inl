#include "kernels/tree/draw_children.h"

#include "kernels/sample/heap_sort.h"
#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"
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

struct Race {
  const float* logits;
  int vocab;
  float max, temperature;
  RaceNames names;
};

/// Runs the tokens of positive weight; with kRest those of weight 0, each with weight 1.
template <bool kRest>
void run(const Race& race, Leaders& leaders) {
  PhiloxWords words;
  float x[kRaceBlock], scaled[kRaceBlock], least[kRaceBlock];
  for (int begin = 0; begin < race.vocab; begin += kRaceBlock) {
    const int n = race.vocab - begin < kRaceBlock ? race.vocab - begin : kRaceBlock;
    const auto block = static_cast<uint32_t>(begin) / 4;
    race_words(words, race.names, block);
    const uint32_t* leading = words.w[0];
    memcpy(x, race.logits + begin, static_cast<size_t>(n) * sizeof(float));
    for (int i = n; i < kRaceBlock; ++i) x[i] = race.max;
    // A look in f32 spares nearly all tokens the rest: E is at least its leading bits, and the
    // weight is at most `scaled`. The margin is for the roundings, of 2^-24 each.
    const float bar = static_cast<float>(leaders.bar * (1.0 + 0x1p-18));
    uint32_t hopeful = 0;
    for (int i = 0; i < kRaceBlock; ++i)
      scaled[i] = scaled_exp((x[i] - race.max) / race.temperature);
    for (int i = 0; i < kRaceBlock; ++i) {
      const float others = kRest ? 1.0f : 0.0f;
      scaled[i] = scaled[i] < 1.0f ? others : kRest ? 0.0f : scaled[i];
      least[i] = static_cast<float>(static_cast<int32_t>(leading[i] >> 1)) * 0x1p-31f;
      hopeful |= static_cast<uint32_t>(least[i] <= bar * scaled[i]);
    }
    if (!hopeful) continue;
    for (int i = 0; i < n; ++i) {
      if (!(least[i] <= bar * scaled[i])) continue;
      PhiloxWords later;
      race_words(later, race.names, (block + static_cast<uint32_t>(i % kPhiloxLanes)) | kMoreBits);
      const double e = exponential_of(leading[i], later.w[i / kPhiloxLanes][0]);
      // A token that does not take part has weight 0 and key inf.
      const double key = e / static_cast<double>(static_cast<int64_t>(scaled[i]));
      if (key < leaders.bar) leaders.add(key, begin + i);
    }
  }
  leaders.settle();
}

/// Best first into w.contenders.
void race_row(const Race& race, int wanted, const ChildrenWorkspace& w) {
  const auto start = [&](Contender* at, int n_wanted, int n_runners) {
    const int spare = n_wanted > 64 ? n_wanted : 64;
    const int room = n_wanted + spare < n_runners ? n_wanted + spare : n_runners;
    return Leaders{at, n_wanted, 0, room, __builtin_inf()};
  };
  Leaders first = start(w.contenders, wanted, race.vocab);
  run<false>(race, first);
  if (first.n >= wanted) return;
  Leaders rest = start(w.contenders + first.n, wanted - first.n, race.vocab - first.n);
  run<true>(race, rest);
}

/// The largest logits, best first, into w.contenders.
void rank_row(const float* x, int vocab, int wanted, const ChildrenWorkspace& w) {
  const int n = keep_top(x, vocab, wanted, w.select);
  for (int i = 0; i < n; ++i)
    w.contenders[i] = {-static_cast<double>(order_key(w.select.top[i])), w.select.id[i]};
  heap_sort(w.contenders, n);
}

void draw_row(const DrawChildrenParams& p, int r, const ChildrenWorkspace& w) {
  const ParentRow& parent = p.parents[r];
  int32_t* tokens = p.tokens + parent.first_child;
  const int wanted = parent.n_children;
  if (wanted == 0) return;
  const float* x = p.logits + static_cast<int64_t>(r) * p.vocab;
  const Extremes extremes = scan(x, p.vocab, w.select.block_max);
  if (extremes.is_valid && p.temperature == 0.0f) rank_row(x, p.vocab, wanted, w);
  if (extremes.is_valid && p.temperature > 0.0f) {
    const float max = x[first_with_key(x, extremes.max, w.select.block_max)];
    const RaceNames names{names_of(p.numbers, parent.seq), static_cast<uint32_t>(parent.node)};
    race_row({x, p.vocab, max, p.temperature, names}, wanted, w);
  }
  for (int i = 0; i < wanted; ++i)
    tokens[i] = extremes.is_valid ? w.contenders[i].id : kInvalidToken;
}

}  // namespace

void TANDEM_ISA_FN(draw_children)(const DrawChildrenParams& p, Range rows) {
  const ChildrenWorkspace w = lay_out_children(p.workspace, p.vocab);
  for (int r = rows.begin; r < rows.end; ++r) draw_row(p, r, w);
}

}  // namespace tandem
