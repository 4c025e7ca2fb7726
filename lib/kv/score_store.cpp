#include "kv/score_store.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::kv {
namespace {

constexpr const char* kScores = "kv/scores";
constexpr const char* kLse = "kv/scores.lse";
constexpr const char* kRowLse = "workspace/scores.lse";

size_t cells(const ScoreStore::Spec& s) {
  return static_cast<size_t>(s.max_slots) * static_cast<size_t>(s.n_layers);
}

}  // namespace

void ScoreStore::plan(const Spec& s, MemoryPlan& plan) {
  const auto heads = static_cast<size_t>(s.n_heads);
  plan.add(kScores, cells(s) * static_cast<size_t>(s.n_kv_heads) * s.stride() * sizeof(f16));
  plan.add(kLse, cells(s) * heads * sizeof(float));
  plan.add(kRowLse, static_cast<size_t>(s.max_rows) * heads * sizeof(float));
}

ScoreStore::ScoreStore(const Spec& spec, Arena& arena)
    : spec_(spec),
      scores_(static_cast<f16*>(arena.take(kScores))),
      lse_(static_cast<float*>(arena.take(kLse))),
      row_lse_(static_cast<float*>(arena.take(kRowLse))),
      tokens_(static_cast<size_t>(spec.max_slots)) {
  std::fill_n(lse_, cells(spec) * static_cast<size_t>(spec.n_heads), 0.0f);
}

KeyScores ScoreStore::request(int layer, const Step& step) const {
  TANDEM_CHECK(step.n_rows <= spec_.max_rows, "{} rows leave scores, planned for {}", step.n_rows,
               spec_.max_rows);
  const auto stride = static_cast<int64_t>(spec_.stride());
  return {.at = const_cast<f16*>(scores(0, layer, 0)),
          .lse = lse(0, layer),
          .row_stride = int64_t{spec_.n_layers} * spec_.n_kv_heads * stride,
          .head_stride = stride,
          .lse_stride = int64_t{spec_.n_layers} * spec_.n_heads};
}

const f16* ScoreStore::scores(int slot, int layer, int kv_head) const {
  return scores_ + (cell(slot, layer) * static_cast<size_t>(spec_.n_kv_heads) +
                    static_cast<size_t>(kv_head)) *
                       spec_.stride();
}

float* ScoreStore::lse(int slot, int layer) const {
  return lse_ + cell(slot, layer) * static_cast<size_t>(spec_.n_heads);
}

void ScoreStore::take(int layer, const Step& step) {
  for (int b = 0; b < step.n_seqs; ++b) {
    const int slot = step.slot[static_cast<size_t>(b)], n_rows = step.rows_of(b);
    if (n_rows == 0) continue;
    tokens_[static_cast<size_t>(slot)] = step.base[static_cast<size_t>(b)];
    for (int h = 0; h < spec_.n_heads; ++h) {
      double sum = 0;  // every row sees itself: none is -inf
      for (int r = step.row_begin[static_cast<size_t>(b)];
           r < step.row_begin[static_cast<size_t>(b) + 1]; ++r)
        sum += row_lse_[int64_t{r} * spec_.n_heads + h];
      lse(slot, layer)[h] = static_cast<float>(sum / n_rows);
    }
  }
}

void ScoreStore::fork(int from, int to) {
  std::copy_n(lse(from, 0), spec_.n_layers * spec_.n_heads, lse(to, 0));
  clear(to);
}

void ScoreStore::release(int slot) {
  std::fill_n(lse(slot, 0), spec_.n_layers * spec_.n_heads, 0.0f);
  clear(slot);
}

}  // namespace tandem::kv
