#include "kv/score_store.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/attention.h"

namespace tandem::kv {
namespace {

constexpr const char* kScores = "kv/scores";
constexpr const char* kLse = "kv/scores.lse";
constexpr const char* kRowLse = "workspace/scores.lse";

}  // namespace

void ScoreStore::plan(const Spec& s, MemoryPlan& plan) {
  const auto slots = static_cast<size_t>(s.max_slots);
  plan.add(kScores, slots * static_cast<size_t>(s.row_stride()) * sizeof(f16), s.device);
  plan.add(kLse, slots * static_cast<size_t>(s.lse_stride()) * sizeof(float), s.device);
  plan.add(kRowLse,
           static_cast<size_t>(s.max_rows) * static_cast<size_t>(s.lse_stride()) * sizeof(float),
           s.device);
}

ScoreStore::ScoreStore(const Spec& spec, Arena& arena, const Exec& exec)
    : spec_(spec),
      exec_(exec),
      scores_(static_cast<f16*>(arena.take(kScores))),
      lse_(static_cast<float*>(arena.take(kLse))),
      row_lse_(static_cast<float*>(arena.take(kRowLse))) {}

KeyScores ScoreStore::request(int layer, const Step& step) const {
  TANDEM_CHECK(step.n_rows <= spec_.max_rows, "{} rows of scores exceed the planned {}",
               step.n_rows, spec_.max_rows);
  return {.at = const_cast<f16*>(scores(0, layer, 0)),
          .lse = lse(0, layer),
          .row_stride = spec_.row_stride(),
          .head_stride = spec_.stride(),
          .lse_stride = spec_.lse_stride()};
}

void ScoreStore::take(const Step& step) {
  ops::mean_lse({.out = lse_,
                 .lse = row_lse_,
                 .out_slot_stride = spec_.lse_stride(),
                 .out_layer_stride = spec_.n_heads,
                 .layer_stride = int64_t{spec_.max_rows} * spec_.n_heads,
                 .slot = step.arrays.slot,
                 .row_begin = step.arrays.row_begin,
                 .n_seqs = step.arrays.n_seqs,
                 .n_layers = spec_.n_layers,
                 .n_heads = spec_.n_heads},
                exec_.stream());
}

void ScoreStore::clear(int slot) {
  const auto n = static_cast<size_t>(spec_.lse_stride());
  if (!exec_.on_gpu()) {
    std::fill_n(lse(slot, 0), n, 0.0f);
    return;
  }
  const std::vector<float> none(n);
  exec_.queue->copy_in(lse(slot, 0), none.data(), n * sizeof(float));
}

void ScoreStore::fork(int from, int to) {
  const auto n = static_cast<size_t>(spec_.lse_stride());
  if (exec_.on_gpu())
    exec_.queue->copy_within(lse(to, 0), lse(from, 0), n * sizeof(float));
  else
    std::copy_n(lse(from, 0), n, lse(to, 0));
}

}  // namespace tandem::kv
