#include "eval/attention_error.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/parallel.h"
#include "kv/policies/centered_keys.h"
#include "kv/scoped_slots.h"

namespace tandem::eval {
namespace {

/// Rows of one step: bounds the scores that are held.
constexpr int kStepRows = 16;

/// A list's choice, measured by the scores of all keys that the row sees.
struct Ranking {
  double loss = -1;  // below 0: no key was chosen to be read exactly
  int exact = 0;
};

Ranking rank(std::span<const float> scores, const kv::KeyList& list, int32_t fixed_from) {
  // Those that the policy chooses among: what it reads for any query is put out of the contest.
  std::vector<float> best(
      scores.begin(), scores.begin() + std::min<std::ptrdiff_t>(
                                           fixed_from, static_cast<std::ptrdiff_t>(scores.size())));
  Ranking ranking;
  int left_static = list.n_static;
  std::vector<float> chosen;
  for (const KeySegment& segment : list.segments) {
    if (segment.bias != nullptr || segment.norms != nullptr) continue;
    for (int i = 0; i < segment.n; ++i) {
      const auto id = static_cast<size_t>(segment.ids[i]);
      if (left_static-- > 0)
        best[id] = -INFINITY;
      else
        chosen.push_back(scores[id]);
    }
  }
  ranking.exact = static_cast<int>(chosen.size());
  if (chosen.empty()) return ranking;
  const auto m = static_cast<std::ptrdiff_t>(std::min(chosen.size(), best.size()));
  std::nth_element(best.begin(), best.begin() + m - 1, best.end(), std::greater<>());
  const float top = *std::max_element(best.begin(), best.begin() + m);
  double mass = 0, best_mass = 0;
  for (const float s : chosen) mass += std::exp(double{s} - top);
  for (auto s = best.begin(); s != best.begin() + m; ++s) best_mass += std::exp(double{*s} - top);
  ranking.loss = std::max(0.0, 1 - mass / best_mass);
  return ranking;
}

}  // namespace

void AttentionMeter::begin_part() {
  for (Sums& sums : sums_)
    for (auto* parts : {&sums.error, &sums.lse_error, &sums.ranking_loss}) parts->emplace_back();
}

void AttentionMeter::attended(kv::Cache& cache, int layer, const kv::Step& step, const Tensor& q) {
  TANDEM_CHECK(!sums_[0].error.empty(), "expected a part to begin first");
  const auto cells = static_cast<size_t>(q.rows() * q.size(1));
  for (auto* list : {&full_lse_, &lse_}) list->resize(cells);
  for (auto* list : {&full_o_, &o_}) list->resize(cells * static_cast<size_t>(q.size(2)));
  cache.attend_as({.keys = 0}, layer, step, q, {full_o_.data(), full_lse_.data()});
  score_keys(cache, layer, step, q);
  for (size_t policy = 1; policy < sums_.size(); ++policy) {
    losses_.assign(cells, -1);
    exact_.assign(cells, 0);
    const auto on_list = [&](int row, int head, const kv::KeyList& list, int32_t fixed_from) {
      const auto cell = static_cast<size_t>(row * q.size(1) + head);
      const auto visible = static_cast<size_t>(step.pos[static_cast<size_t>(row)]) + 1;
      const Ranking ranking = rank({scores_.data() + cell * stride_, visible}, list, fixed_from);
      losses_[cell] = ranking.loss;
      exact_[cell] = ranking.exact;
    };
    compare(policy, cache.attend_as({.keys = static_cast<int>(policy)}, layer, step, q,
                                    {o_.data(), lse_.data(), on_list}));
  }
}

void AttentionMeter::score_keys(const kv::Cache& cache, int layer, const kv::Step& step,
                                const Tensor& q) {
  const kv::Geometry& g = cache.geometry();
  const auto d = static_cast<size_t>(g.head_dim), group = static_cast<size_t>(g.group());
  const float scale = g.scale(layer).f32();
  stride_ = static_cast<size_t>(*std::ranges::max_element(step.pos)) + 1;
  scores_.resize(static_cast<size_t>(step.n_rows * g.n_heads) * stride_);
  std::vector<int> seq_of_row;
  for (int b = 0; b < step.n_seqs; ++b)
    seq_of_row.insert(seq_of_row.end(), static_cast<size_t>(step.rows_of(b)), b);
  parallel_for(step.n_rows * g.n_kv_heads, [&](int task) {
    const auto row = static_cast<size_t>(task / g.n_kv_heads);
    const int kv_head = task % g.n_kv_heads;
    const int slot = step.slot[static_cast<size_t>(seq_of_row[row])];
    const size_t first =
        row * static_cast<size_t>(g.n_heads) + static_cast<size_t>(kv_head) * group;
    const kv::KeyRows keys = cache.whole_store(layer).keys(layer, slot, kv_head);
    std::vector<float> queries(group * d), key(d);
    kv::read_vector(static_cast<const char*>(q.raw()) + first * d * dtype_bytes(q.dtype()),
                    q.dtype(), queries);
    const int visible = step.pos[row] + 1;
    for (int t = visible - g.visible(layer, visible); t < visible; ++t) {
      keys.read(t, key.data());
      for (size_t h = 0; h < group; ++h)
        scores_[(first + h) * stride_ + static_cast<size_t>(t)] =
            scale * kv::dot_of({queries.data() + h * d, d}, key);
    }
  });
}

void AttentionMeter::compare(size_t policy, const kv::KeyUsage& usage) {
  if (usage.queries == 0) return;
  Sums& sums = sums_[policy];
  sums.usage = sums.usage.plus(usage);
  sums.exact += std::accumulate(exact_.begin(), exact_.end(), 0.0);
  const size_t d = o_.size() / lse_.size();
  for (size_t cell = 0; cell < lse_.size(); ++cell) {
    double difference = 0, norm = 0;
    for (size_t c = cell * d; c < (cell + 1) * d; ++c) {
      const double full = full_o_[c], delta = double{o_[c]} - full;
      difference += delta * delta;
      norm += full * full;
    }
    sums.error.back().add(norm > 0 ? std::sqrt(difference / norm) : 0);
    sums.lse_error.back().add(std::abs(double{lse_[cell]} - double{full_lse_[cell]}));
    if (losses_[cell] >= 0) sums.ranking_loss.back().add(losses_[cell]);
  }
}

std::vector<AttentionQuality> AttentionMeter::result() const {
  std::vector<AttentionQuality> list;
  for (const Sums& sums : sums_) {
    AttentionQuality& a = list.emplace_back();
    for (const Block& part : sums.error) a.n_queries += part.n;
    if (a.n_queries == 0) continue;
    a.error = mean_of_blocks(sums.error);
    a.lse_error = mean_of_blocks(sums.lse_error);
    if (std::ranges::any_of(sums.ranking_loss, [](const Block& part) { return part.n > 0; }))
      a.ranking_loss = mean_of_blocks(sums.ranking_loss);
    const double n = sums.usage.queries;
    a.visible = sums.usage.visible / n;
    a.selected = sums.usage.selected / n;
    a.exact = sums.exact / n;
    a.fixed = sums.usage.fixed / n;
    a.index_bytes = sums.usage.index_bytes / n;
    a.key_bytes = sums.usage.key_bytes / n;
  }
  return list;
}

std::vector<AttentionQuality> measure_attention(decode::Engine& engine,
                                                std::span<const Window> windows, int rows,
                                                const std::function<bool(int64_t)>& progress) {
  struct Observed {
    kv::Cache& cache;
    Observed(kv::Cache& c, kv::AttentionObserver& observer) : cache(c) { c.observe(&observer); }
    ~Observed() { cache.observe(nullptr); }
  };
  kv::Cache& cache = engine.cache();
  AttentionMeter meter(cache.n_policies());
  const auto of_first = [&](const Window& w) { return w.document == windows[0].document; };
  const bool one_document = std::ranges::all_of(windows, of_first);
  int last_document = -1;
  int64_t done = 0;
  for (const auto& [ids, document, _] : windows) {
    kv::ScopedSlots slots(cache);
    slots.create(cache.all_readers());
    const auto all = std::span<const int32_t>(ids);
    const decode::SeqTokens prompt[] = {
        {slots[0], all.first(all.size() - static_cast<size_t>(rows))}};
    engine.prefill(prompt, {});
    if (one_document || document != last_document) meter.begin_part();
    last_document = document;
    const Observed observed(cache, meter);
    for (size_t begin = prompt[0].tokens.size(); begin < all.size(); begin += kStepRows) {
      const auto tokens = all.subspan(begin, std::min<size_t>(kStepRows, all.size() - begin));
      const kv::SeqRows step_rows[] = {{slots[0], static_cast<int>(tokens.size())}};
      const kv::Step step = cache.begin({.rows = step_rows, .reading = kv::Reading{}});
      engine.model().forward(tokens, step, cache);
      cache.commit(step);
    }
    if (progress && !progress(++done)) return {};
  }
  return meter.result();
}

decode::EngineSpec attention_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                         int prefill_chunk, int context) {
  decode::EngineSpec spec;
  spec.compute = compute;
  spec.prefill_chunk = std::max(prefill_chunk, kStepRows);
  spec.max_tokens = context;
  spec.total_tokens = context;
  spec.max_extend_rows = kStepRows;
  read_by(spec, policies);
  return spec;
}

size_t attention_buffer_bytes(const model::ModelConfig& config, int context) {
  const auto cells = static_cast<size_t>(kStepRows * config.n_heads);
  const auto keys = static_cast<size_t>(context), threads = static_cast<size_t>(max_threads());
  // Scores, outputs of two readings, and of each thread a copy of a head's scores and a list's.
  return (cells * (keys + 2 * static_cast<size_t>(config.head_dim)) + 2 * threads * keys) *
         sizeof(float);
}

}  // namespace tandem::eval
