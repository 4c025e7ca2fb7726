#include "kv/hosted/hosted_residence.h"

#include <algorithm>
#include <limits>

#include "kv/hosted/far_range.h"
#include "kv/hosted/key_stream.h"
#include "kv/hosted/prompt_indexing.h"

namespace tandem::kv {
namespace {

constexpr const char* kNearTables = "workspace/near page tables";

class HostedResidence final : public Residence {
 public:
  HostedResidence(const HostedSpec& spec, PageGroups& groups, Arena& arena, const Exec& exec)
      : Residence(groups),
        geometry_(spec.geometry),
        recent_(spec.recent),
        exec_(exec),
        keys_(spec.keys, whole_, arena, exec),
        near_tables_(static_cast<int32_t*>(arena.take(kNearTables)), spec.keys.whole.max_slots,
                     spec.keys.whole.max_pages) {
    if (spec.keys.streamed) stream_ = std::make_unique<KeyStream>(spec.keys, whole_, keys_, exec);
    if (spec.far) far_.emplace(*spec.far, arena);
    facts_ = {.by_layers = true,
              .streams_keys = spec.keys.streamed,
              .prompt_pages = keys_.prompt_pages(),
              .why_unpinned = keys_.why_unpinned()};
  }

  void connect(std::span<const std::unique_ptr<Policy>> policies,
               std::span<const Readers> readers) override {
    readers_ = readers;
    keys_.read_from([this](int slot) { return range_begin(slot); });
    for (const auto& policy : policies) {
      HostedIndex& index = *policy->hosted();
      index.read_hosted(keys_, static_cast<int>(indexes_.size()), exec_);
      indexes_.push_back(&index);
      const auto where = index.takes_read_prompts() ? PromptIndexing::Where::in_queue
                                                    : PromptIndexing::Where::on_thread;
      indexing_.push_back(std::make_unique<PromptIndexing>(index, keys_.far(), keys_.prompt(),
                                                           where, keys_.prompt_copies()));
    }
    if (facts_.why_unpinned.empty()) facts_.why_unpinned = indexes_.front()->why_unpinned();
  }

  int acquire() override {
    const int slot = Residence::acquire();
    keys_.acquire(slot);
    return slot;
  }
  int fork(int slot) override {
    const int copy = Residence::fork(slot);
    keys_.fork(slot, copy);
    return copy;
  }
  void release(int slot) override {
    forget();
    keys_.release(slot);
    Residence::release(slot);
  }
  void reserve(int slot, int n, Phase phase) override {
    Residence::reserve(slot, n, phase);
    if (phase == Phase::prefill) return keys_.hold_prompt(slot, n);
    keys_.hold_split(slot, range_begin(slot));
    keys_.near().reserve(slot, n);
  }
  void commit(int slot, int n, Phase phase) override {
    Residence::commit(slot, n, phase);
    if (phase == Phase::prefill) return keys_.wrote_far(slot);
    keys_.committed(slot, recent_);
  }
  void adopt(int slot) override {
    forget();
    if (keys_.is_split(slot)) return keys_.store(slot);
    keys_.wrote_far(slot);
  }
  void evict(int slot, const Retention& needed) override {
    Residence::evict(slot, needed);
    keys_.near().drop(slot, 0, range_begin(slot));
  }
  void cut(int slot, int n, bool frees_pages) override {
    forget();
    keys_.store(slot);
    Residence::cut(slot, n, frees_pages);
    keys_.cut(slot);
    if (frees_pages) keys_.free_end(slot);  // readers may need room
  }
  void store(int slot) override { keys_.store(slot); }

  void lay_out_tables(Phase phase, std::span<const int32_t> slots) override {
    Residence::lay_out_tables(phase, slots);
    near_tables_.lay_out(of_rows(phase), slots);
  }
  std::vector<const PageTables*> tables() const override {
    std::vector<const PageTables*> all = Residence::tables();
    all.push_back(&near_tables_);
    return all;
  }
  std::optional<NearRows> near_rows(int slot, Phase phase, Reading reading) const override {
    const HostedIndex& index = *indexes_[static_cast<size_t>(reading.keys)];
    return NearRows{of_rows(phase).pages(slot),
                    phase == Phase::extend ? index.range_begin(slot) : 0};
  }
  void move_paths(const Step& step, const PagedStore::AcceptedPaths& paths) override {
    Residence::move_paths(step, paths);
    keys_.near().move_paths(paths, step.near);
  }

  LayerKeys keys(int layer, const Step& step) const override {
    if (!keys_.holds(layer)) return Residence::keys(layer, step);
    const PagedStore& store = of_rows(step.phase);
    return {store.k(layer), store.v(layer), step.near};
  }
  const PagedStore& whole(int layer) const override {
    return keys_.holds(layer) ? keys_.far() : Residence::whole(layer);
  }
  /// Further readers know where keys in host memory are.
  const PagedStore& indexed(int policy) const override {
    return policy == 0 ? keys_.far() : whole_;
  }

  void begin_prompts() override { keys_.begin_prompts(); }
  void begin_layer(int layer, std::span<const Step> steps) override {
    if (!keys_.holds(layer)) return;
    if (stream_) stream_->lend();
    for (const Step& step : steps)
      for (size_t b = 0; b < step.slot.size(); ++b)
        // An earlier one of the steps writes the others by then.
        if (step.base[b] == whole_.length(step.slot[b]))
          keys_.begin_layer(layer, step.slot[b], step.base[b]);
  }
  void begin_step(int layer, size_t i) override {
    if (keys_.holds(layer)) keys_.begin_step(i);
  }
  void end_layer(int layer, std::span<const Step> steps) override {
    if (!keys_.holds(layer)) return;
    std::vector<std::vector<HostedKeys::Rows>> rows;
    std::vector<std::vector<PromptIndexing::Prompt>> ended(indexing_.size());  // by policy
    for (const Step& step : steps) {
      rows.emplace_back();
      for (int b = 0; b < step.n_seqs; ++b) {
        const auto i = static_cast<size_t>(b);
        const int end = step.base[i] + step.rows_of(b);
        rows.back().push_back({step.slot[i], step.base[i], end});
        for (size_t p = 0; p < ended.size(); ++p)
          if (step.last_chunk[i] != 0 && reads(step.slot[i], p))
            ended[p].push_back({step.slot[i], end});
      }
    }
    const auto index = [&] {
      for (size_t p = 0; p < ended.size(); ++p) indexing_[p]->layer(layer, std::move(ended[p]));
    };
    // A policy that indexes from host memory is the only one.
    if (!indexing_.front()->reads_far()) return keys_.end_layer(layer, rows, index);
    keys_.end_layer(layer, rows);
    index();
  }
  void end_prompts() override {
    keys_.finish_copies();
    for (const auto& indexing : indexing_) indexing->finish();
  }
  void give_up_prompts() noexcept override {
    try {
      keys_.finish_copies();
    } catch (const std::exception&) {
      // The GPU has stopped, and writes nothing any more.
    }
    for (const auto& indexing : indexing_) indexing->give_up();
  }

  bool reads_near(int layer, const Step& step) const override {
    return keys_.holds(layer) && step.phase == Phase::extend;
  }
  /// Further readers have copies.
  bool reads_far(int layer, const Step& step) const override {
    return reads_near(layer, step) && step.reading.keys == 0;
  }
  const PagedStore* passing(int layer, const Step& step) override {
    return stream_ && reads_far(layer, step) ? &stream_->acquire(layer, step) : nullptr;
  }
  void passed(int layer, const Step& step, const PagedStore& keys) override {
    for (HostedIndex* index : indexes_)
      if (!step.probe) index->on_pass(layer, step, keys);
    stream_->release(layer);
  }
  bool attend_far(int layer, const Step& step, const Tensor& q, float* o, float* lse) override {
    if (!far_) return false;
    far_->attend({.layer = layer,
                  .step = step,
                  .far = keys_.far(),
                  .tables = groups_.tables(0),
                  .q = q,
                  .scale = geometry_.scale(layer).f32(),
                  .o = o,
                  .lse = lse});
    return true;
  }
  double streamed_bytes() const override {
    return (stream_ ? stream_->bytes() : 0) + keys_.read_bytes();
  }
  void settle() const override {
    if (stream_) stream_->wait();
  }

 private:
  bool reads(int slot, size_t policy) const {
    return readers_[static_cast<size_t>(slot)].has(static_cast<int>(policy));
  }
  /// First token of a slot that ranges of its readers read.
  int range_begin(int slot) const {
    int begin = std::numeric_limits<int>::max();
    for (size_t i = 0; i < indexes_.size(); ++i)
      if (reads(slot, i)) begin = std::min(begin, indexes_[i]->range_begin(slot));
    return begin;
  }
  /// The store on the device where rows of a step have the keys of hosted layers.
  const PagedStore& of_rows(Phase phase) const {
    return phase == Phase::extend ? keys_.near() : keys_.prompt();
  }
  /// Empties the ring: texts change otherwise than by growing.
  void forget() {
    if (stream_) stream_->forget();
  }

  Geometry geometry_;
  int recent_;
  Exec exec_;
  HostedKeys keys_;
  PageTables near_tables_;
  std::unique_ptr<KeyStream> stream_;  // when all keys go to the device
  std::optional<FarRange> far_;        // when the CPU attends them
  std::span<const Readers> readers_;   // by slot
  // By policy:
  std::vector<HostedIndex*> indexes_;
  std::vector<std::unique_ptr<PromptIndexing>> indexing_;
};

}  // namespace

void plan_hosted(const HostedSpec& spec, MemoryPlan& plan) {
  HostedKeys::plan(spec.keys, plan);
  plan.add(kNearTables, PageTables::bytes(spec.keys.whole.max_slots, spec.keys.whole.max_pages));
  if (spec.far) FarRange::plan(*spec.far, plan);
}

std::unique_ptr<Residence> make_hosted(const HostedSpec& spec, PageGroups& groups, Arena& arena,
                                       const Exec& exec) {
  return std::make_unique<HostedResidence>(spec, groups, arena, exec);
}

}  // namespace tandem::kv
