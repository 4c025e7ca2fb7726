#include "kv/quantized/quantized_residence.h"

#include <algorithm>
#include <map>

namespace tandem::kv {
namespace {

constexpr const char* kNearTables = "workspace/near page tables";

class QuantizedResidence final : public Residence {
 public:
  QuantizedResidence(const QuantizedSpec& spec, PageGroups& groups, Arena& arena,
                     const QueryRing& queries)
      : Residence(groups),
        geometry_(spec.geometry),
        keys_(spec.keys, whole_, arena),
        attention_(spec.bounds, keys_, arena),
        queries_(queries),
        near_tables_(static_cast<int32_t*>(arena.take(kNearTables)), spec.keys.whole.max_slots,
                     spec.keys.whole.max_pages) {
    facts_ = {.by_layers = true, .quantized = true, .prompt_pages = keys_.prompt().spec().n_pages};
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
    keys_.release(slot);
    Residence::release(slot);
  }
  void reserve(int slot, int n, Phase phase) override {
    Residence::reserve(slot, n, phase);
    if (phase == Phase::prefill)
      keys_.hold_prompt(slot, n);
    else
      keys_.hold_near(slot, n);
  }
  void commit(int slot, int n, Phase phase) override {
    if (phase == Phase::prefill)
      keys_.commit_prompt(slot, n);
    else
      keys_.commit(slot, n);
    Residence::commit(slot, n, phase);
  }
  void cut(int slot, int n, bool frees_pages) override {
    Residence::cut(slot, n, frees_pages);
    keys_.cut(slot, n);
  }
  int next_change(int slot) const override { return keys_.next_mark(slot); }

  void lay_out_tables(Phase phase, std::span<const int32_t> slots) override {
    Residence::lay_out_tables(phase, slots);
    near_tables_.lay_out(of_rows(phase), slots);
  }
  std::vector<const PageTables*> tables() const override {
    std::vector<const PageTables*> all = Residence::tables();
    all.push_back(&near_tables_);
    return all;
  }
  std::optional<NearRows> near_rows(int slot, Phase phase, Reading) const override {
    return NearRows{of_rows(phase).pages(slot), phase == Phase::extend ? keys_.mark(slot) : 0};
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

  void begin_prompts() override { keys_.begin_prompts(); }
  void begin_layer(int layer, std::span<const Step> steps) override {
    if (!keys_.holds(layer)) return;
    for (const auto& [slot, n] : ends(steps))
      if (const int before = whole_.length(slot); before > 0)
        keys_.begin_layer(layer, slot, before);
  }
  void end_layer(int layer, std::span<const Step> steps) override {
    if (!keys_.holds(layer)) return;
    for (const auto& [slot, n] : ends(steps)) keys_.end_layer(layer, slot, n, &queries_);
  }

  bool reads_near(int layer, const Step& step) const override {
    return keys_.holds(layer) && step.phase == Phase::extend;
  }
  bool reads_far(int layer, const Step& step) const override { return reads_near(layer, step); }
  bool attend_far(int layer, const Step& step, const Tensor& q, float* o, float* lse) override {
    attention_.attend({.layer = layer,
                       .step = step,
                       .tables = groups_.tables(0),
                       .q = q,
                       .scale = geometry_.scale(layer).f32(),
                       .o = o,
                       .lse = lse});
    return true;
  }
  double token_bytes(int layer) const override {
    return keys_.holds(layer) ? kv::token_bytes(keys_.layout(layer), geometry_.n_kv_heads)
                              : Residence::token_bytes(layer);
  }

 private:
  /// The ends of the steps' texts, by slot.
  static std::map<int, int> ends(std::span<const Step> steps) {
    std::map<int, int> all;
    for (const Step& step : steps)
      for (int b = 0; b < step.n_seqs; ++b) {
        const auto i = static_cast<size_t>(b);
        int& end = all[step.slot[i]];
        end = std::max(end, step.base[i] + step.rows_of(b));
      }
    return all;
  }
  /// The store where rows of a step have the keys of layers in codes.
  const PagedStore& of_rows(Phase phase) const {
    return phase == Phase::extend ? keys_.near() : keys_.prompt();
  }

  Geometry geometry_;
  QuantizedKeys keys_;
  QuantizedAttention attention_;
  const QueryRing& queries_;
  PageTables near_tables_;
};

}  // namespace

void plan_quantized(const QuantizedSpec& spec, MemoryPlan& plan) {
  QuantizedKeys::plan(spec.keys, plan);
  QuantizedAttention::plan(spec.bounds, plan);
  plan.add(kNearTables, PageTables::bytes(spec.keys.whole.max_slots, spec.keys.whole.max_pages));
}

std::unique_ptr<Residence> make_quantized(const QuantizedSpec& spec, PageGroups& groups,
                                          Arena& arena, const QueryRing& queries) {
  return std::make_unique<QuantizedResidence>(spec, groups, arena, queries);
}

}  // namespace tandem::kv
