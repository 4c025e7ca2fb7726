#include "kv/cache.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/convert.h"
#include "kv/cache_parts.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace tandem::kv {

using namespace parts;

Cache::Cache(const Spec& spec, Arena& arena, std::span<const ops::RopeTable> ropes,
             const Exec& exec)
    : spec_(spec),
      exec_(exec),
      groups_(group_specs(spec), spec.max_draft_rows, arena, exec),
      store_(groups_.store(0)),
      ropes_(ropes),
      readers_(static_cast<size_t>(spec.max_seqs)),
      workspace_(ops::attention_workspace(spec.device, attention_bounds(spec),
                                          arena.take("workspace/attention"))),
      usage_(spec.policies.size()) {
  const Exec chooses = list_device(spec) == spec.device ? exec : Exec{};
  if (!ring_spec(spec).empty())
    queries_ = std::make_unique<QueryRing>(ring_spec(spec), arena, exec);
  if (const auto hosted = hosted_spec(spec))
    residence_ = make_hosted(*hosted, groups_, arena, exec);
  else if (const auto quantized = quantized_spec(spec))
    residence_ = make_quantized(*quantized, groups_, arena, *queries_);
  else
    residence_ = std::make_unique<Residence>(groups_);
  if (wants_scores(spec)) scores_ = std::make_unique<ScoreStore>(score_spec(spec), arena, exec);
  for (size_t i = 0; i < spec.policies.size(); ++i) {
    policies_.push_back(make_policy(spec.policies[i], bounds_of(spec, i)));
    needs_.push_back(policies_.back()->needs());
    policies_.back()->set_up(arena, prefix_of(spec, i), {chooses, queries_.get(), scores_.get()});
  }
  residence_->connect(policies_, readers_);
  if (exec.on_gpu()) device_step_ = std::make_unique<DeviceStep>(step_bounds(spec), arena, exec);
  const RunNeeds needs = needs_of_run(spec);
  n_parts_ = needs.parts;
  if (needs.scratch_bytes > 0)
    lists_ = std::make_unique<ListAttention>(list_spec(spec, needs.scratch_bytes), arena);
  if (!spec.policies.empty() && spec.policies[0].attends() == recipe::Attend::both)
    cpu_share_ = spec.policies[0].cpu_share > 0 ? spec.policies[0].cpu_share : 0.5;
  for (int i = 0; serves_gpu(spec) && i < kMicroBatches; ++i)
    served_.push_back(std::make_unique<HostAttention>(served_spec(spec, i), arena, exec));
  if (!needs.partials()) return;
  partial_o_ = static_cast<float*>(arena.take("workspace/partial_o"));
  partial_lse_ = static_cast<float*>(arena.take("workspace/partial_lse"));
  if (turns_q(spec)) q_shifted_ = arena.take("workspace/q_shifted");
}

int Cache::create(Readers readers) {
  const int slot = residence_->acquire();
  readers_[static_cast<size_t>(slot)] = readers;
  if (scores_) scores_->clear(slot);
  return slot;
}

int Cache::fork(int slot, Readers readers) {
  const int copy = residence_->fork(slot);
  readers_[static_cast<size_t>(copy)] = readers;
  if (const int token = missing_token(copy, length(copy)); token >= 0) {
    residence_->release(copy);
    throw input_error("kv cache", "the {} policy needs token {}, which the {} policy evicted",
                      needs(readers.front()).kind, token, kind_of(slot));
  }
  if (queries_) queries_->fork(slot, copy);
  if (scores_) scores_->fork(slot, copy);
  try {
    for (int i = 0; i < n_policies(); ++i) {
      if (!readers.has(i)) continue;
      Policy& p = *policies_[static_cast<size_t>(i)];
      if (readers_of(slot).has(i))
        p.on_fork(slot, copy);
      else if (length(copy) > 0)
        p.on_prompt(copy, residence_->indexed(i));
    }
  } catch (...) {
    release(copy);
    throw;
  }
  if (listener_ != nullptr) listener_->on_fork(slot, copy);
  return copy;
}

void Cache::release(int slot) {
  for_readers(slot, [&](Policy& p, int) { p.on_release(slot); });
  if (listener_ != nullptr) listener_->on_release(slot);
  if (queries_) queries_->release(slot);
  residence_->release(slot);
}

void Cache::adopt_pages(int slot, int n, const std::function<bool(int layer, int page)>& has) {
  refuse_quantized("saved states");
  groups_.adopt(slot, n, retention(slot).with(spec_.geometry.dense_retention()), has);
}

void Cache::refuse_quantized(std::string_view what) const {
  if (residence_->facts().quantized)
    throw recipe_error("cache.dtype", "{} does not support {}",
                       recipe::yaml_text(spec_.policies[0].dtype), what)
        .hint("set it to auto");
}

void Cache::adopt_prompt(int slot) {
  residence_->adopt(slot);
  for_readers(slot, [&](Policy& p, int i) { p.on_prompt(slot, residence_->indexed(i)); });
  if (listener_ != nullptr) listener_->on_prompt(slot);
}

void Cache::truncate(int slot, int n) { go_back(slot, n, /*frees_pages=*/true); }

void Cache::uncommit(int slot, int n) { go_back(slot, n, /*frees_pages=*/false); }

void Cache::go_back(int slot, int n, bool frees_pages) {
  if (const int token = missing_token(slot, n); token >= 0)
    throw input_error("kv cache", "cannot roll back to {} tokens: the {} policy evicted token {}",
                      n, kind_of(slot), token);
  residence_->cut(slot, n, frees_pages);
  for_readers(slot, [&](Policy& p, int i) { p.on_truncate(slot, n, residence_->indexed(i)); });
  if (listener_ != nullptr) listener_->on_truncate(slot, n);
  if (frees_pages) groups_.truncate(slot, n);
}

int Cache::missing_token(int slot, int n) const {
  return groups_.missing_token(slot, n, retention(slot));
}

Step Cache::begin(const StepSpec& spec) {
  Step step = lay_out(spec);
  publish({&step, 1}, spec.outbox);
  return step;
}

std::vector<Step> Cache::begin_levels(const StepSpec& spec,
                                      std::span<const std::vector<int>> level_ends) {
  std::vector<Step> levels = split_levels(lay_out(spec), level_ends);
  publish(levels, spec.outbox);
  return levels;
}

void Cache::begin_again(std::span<Step> steps, std::span<const int32_t> slots, Outbox* outbox,
                        int ahead) {
  const Step& last = steps.back();
  TANDEM_CHECK(last.phase == Phase::extend && static_cast<int>(slots.size()) == last.n_seqs,
               "found {} sequences for a step of {}", slots.size(), last.n_seqs);
  for (size_t b = 0; b < slots.size(); ++b) {
    TANDEM_CHECK(readers_of(slots[b]).has(last.reading.keys), "slot {} has no attention policy {}",
                 slots[b], last.reading.keys);
    const int n_rows = last.tentative_of(static_cast<int>(b)) + last.rows_of(static_cast<int>(b));
    residence_->reserve(slots[b], store_.length(slots[b]) + n_rows + ahead, Phase::extend);
  }
  for (Step& step : steps) step.ahead = ahead;
  for (Step& step : steps)
    for (size_t b = 0; b < slots.size(); ++b)
      move_rows(step, static_cast<int>(b), slots[b], store_.length(slots[b]),
                store_.pages(slots[b]), groups_.further_pages(slots[b]),
                residence_->near_rows(slots[b], step.phase, step.reading).value_or(NearRows{}));
  residence_->lay_out_tables(last.phase, last.slot);
  publish(steps, outbox);
}

Reading Cache::reading_of(const StepSpec& spec) const {
  if (spec.rows.empty()) return {};
  const Readers readers = readers_of(spec.rows[0].slot);
  TANDEM_CHECK(spec.reading || readers.count() == 1 || spec.phase == Phase::prefill,
               "the step must name one of its sequences' {} attention policies", readers.count());
  const auto usual = static_cast<size_t>(readers.front());
  Reading reading = spec.reading.value_or(
      Reading{.keys = readers.front(),
              .channels = usual < spec_.channels.size() ? spec_.channels[usual] : 0});
  if (spec.phase == Phase::prefill) reading.channels = 0;
  for (const SeqRows& r : spec.rows)
    TANDEM_CHECK(readers_of(r.slot).has(reading.keys), "slot {} has no attention policy {}", r.slot,
                 reading.keys);
  return reading;
}

Step Cache::lay_out(const StepSpec& spec) {
  const std::span<const SeqRows> rows = spec.rows;
  TANDEM_CHECK(spec.trees.empty() || spec.trees.size() == rows.size(),
               "unexpected number of trees: {}", spec.trees.size());
  Step step;
  step.phase = spec.phase;
  step.reading = reading_of(spec);
  step.drafted = !spec.trees.empty();
  step.probe = spec.probe;
  step.ahead = spec.ahead;
  step.micro_batch = spec.micro_batch;
  step.rows_before = spec.rows_before;
  step.row_begin.push_back(0);
  step.groups.resize(groups_.size() - 1);
  for (const SeqRows& r : rows)
    residence_->reserve(r.slot, store_.length(r.slot) + r.n_rows + spec.ahead, spec.phase);
  // Tokens that a policy has already cut can only be continued through the policy.
  const auto n_cut = static_cast<size_t>(
      std::count_if(rows.begin(), rows.end(), [&](const SeqRows& r) { return is_cut(r.slot); }));
  const bool windowed = needs(step.reading.keys).reads_prompts;
  TANDEM_CHECK(spec.phase == Phase::extend || windowed || n_cut == 0 || n_cut == rows.size(),
               "a prefill mixes {} evicted sequences with others, {} in all", n_cut, rows.size());
  if (windowed || n_cut > 0) step.phase = Phase::extend;
  if (!std::ranges::all_of(spec.trees, &Tree::is_chain))
    for (const SeqRows& r : rows) step.mask_words = std::max(step.mask_words, (r.n_rows + 63) / 64);
  for (size_t b = 0; b < rows.size(); ++b)
    add_rows(step, rows[b], step.is_tree() ? &spec.trees[b] : nullptr);
  step.places = std::max(step.n_seqs, exec_.on_gpu() ? spec.places : 0);
  TANDEM_CHECK(step.padded_rows() <= spec_.max_rows && step.places <= spec_.max_seqs,
               "{} rows in {} batch slots exceed the planned {} in {}", step.padded_rows(),
               step.places, spec_.max_rows, spec_.max_seqs);
  for (int b = 1; step.places > step.n_seqs && b < step.n_seqs; ++b)
    TANDEM_CHECK(step.rows_of(b) == step.rows_of(0),
                 "padded sequences have different numbers of rows: {} and {}", step.rows_of(b),
                 step.rows_of(0));
  residence_->lay_out_tables(step.phase, step.slot);
  return step;
}

void Cache::publish(std::span<Step> steps, Outbox* outbox) {
  for (const Step& step : steps)
    if (queries_) queries_->expect(step);
  const std::vector<const PageTables*> tables = residence_->tables();
  if (!device_step_) {
    for (Step& step : steps) {
      step.point_to_host();
      tables[0]->give_to(step.arrays);
      for (size_t g = 1; g < groups_.size(); ++g) tables[g]->give_to(step.groups[g - 1].arrays);
      tables.back()->give_to(step.near);
    }
    return;
  }
  device_step_->send(steps, tables, outbox);
  // Here, not in attend: a recorded graph repeats only the work of attend. serve_layer counts what
  // the host chooses.
  const bool chooses = policy(0).selector() != nullptr;
  for (const Step& step : steps)
    for (int layer = 0;
         step.phase == Phase::extend && !step.probe && layer < spec_.geometry.n_layers; ++layer)
      if (!chooses || host_of(layer, step) == nullptr) count_dense(layer, step);
}

int Cache::max_extend_rows_a_seq() const {
  return has_lists(spec_) ? ops::kMaxListRows : std::numeric_limits<int>::max();
}

bool Cache::is_cut(int slot) const {
  return groups_.missing_token(slot, store_.length(slot), spec_.geometry.dense_retention()) >= 0;
}

Retention Cache::retention(int slot) const {
  Retention all{.sinks = 0, .recent = 0};
  for (int i = 0; i < n_policies(); ++i)
    if (readers_of(slot).has(i)) all = all.with(needs(i).retention);
  return all;
}

void Cache::add_rows(Step& step, const SeqRows& rows, const Tree* tree) {
  const int base = store_.length(rows.slot), first = step.n_rows;
  step.slot.push_back(rows.slot);
  step.base.push_back(base);
  step.last_chunk.push_back(rows.last_chunk ? 1 : 0);
  const std::optional<NearRows> near = residence_->near_rows(rows.slot, step.phase, step.reading);
  for (int i = 0; i < rows.n_rows; ++i) {
    const int token = base + i, page = token / kPageTokens;
    step.pos.push_back(token);
    step.row_page.push_back(store_.page(rows.slot, page));
    step.row_in_page.push_back(token % kPageTokens);
    for (size_t g = 1; g < groups_.size(); ++g)
      step.groups[g - 1].row_page.push_back(groups_.store(g).page(rows.slot, page));
    if (near) step.near_page.push_back(near->pages[static_cast<size_t>(page)]);
  }
  if (near) step.near_begin.push_back(near->begin);
  step.n_rows += rows.n_rows;
  step.row_begin.push_back(step.n_rows);
  ++step.n_seqs;
  if (tree != nullptr) add_tree(step, first, *tree);
}

void Cache::commit(const Step& step) {
  std::vector<int> kept;
  for (int b = 0; b < step.n_seqs; ++b) kept.push_back(step.rows_of(b));
  commit(step, kept);
}

void Cache::commit(const Step& step, std::span<const int> kept) {
  for (int b = 0; b < step.n_seqs; ++b) {
    const int n = kept[static_cast<size_t>(b)], n_rows = step.tentative_of(b) + step.rows_of(b);
    TANDEM_CHECK(n >= 0 && n <= n_rows, "cannot accept {} of {} rows", n, n_rows);
  }
  if (step.phase == Phase::extend) return keep(step.slot, kept);
  for (size_t b = 0; b < step.slot.size(); ++b) {
    const int slot = step.slot[b];
    residence_->commit(slot, step.base[b] + kept[b], step.phase);
    const bool ends = step.last_chunk[b] != 0;
    if (ends) adopt_prompt(slot);
    // The rest of a prompt is read densely.
    groups_.evict(slot,
                  ends ? retention(slot) : retention(slot).with(spec_.geometry.dense_retention()));
  }
}

void Cache::keep(std::span<const int32_t> slots, std::span<const int> kept) {
  for (size_t b = 0; b < slots.size(); ++b)
    residence_->commit(slots[b], store_.length(slots[b]) + kept[b], Phase::extend);
  for (int i = 0; i < n_policies(); ++i) {
    std::vector<int32_t> read;
    std::ranges::copy_if(slots, std::back_inserter(read),
                         [&](int slot) { return readers_of(slot).has(i); });
    if (!read.empty()) policies_[static_cast<size_t>(i)]->on_commit(read, residence_->indexed(i));
  }
  for (const int32_t slot : slots) residence_->evict(slot, retention(slot));
}

}  // namespace tandem::kv
