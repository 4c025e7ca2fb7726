#include "ffn/policies/policies.h"

namespace tandem::ffn {
namespace {

/// Griffin (arXiv 2404.01365): the channels that a prompt used most, for all that follows. Each
/// token counts as much as any other: its product is divided by its norm, that over all ranks'
/// channels where there are several, each of which keeps the same share of those it has. Deviation:
/// with `refresh` rows of checks blend in, where the paper's list stays.
class Griffin final : public Policy {
 public:
  Griffin(const recipe::Sparse& sparse, const Bounds& bounds)
      : bounds_(bounds),
        keep_(n_kept(sparse.keep, bounds.shape.ffn_dim)),
        refresh_(static_cast<float>(sparse.refresh)),
        needs_(needs_of(sparse)),
        statistic_(bounds) {}

  std::string_view name() const override { return "griffin"; }
  Needs needs() const override { return needs_; }
  int most_channels() const override { return keep_; }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    statistic_.plan(plan, prefix);
    plan.add(prefix + ".lists", n_lists() * static_cast<size_t>(keep_) * sizeof(int32_t),
             bounds_.device);
    plan.add(prefix + ".counts", n_lists() * sizeof(int32_t), bounds_.device);
    plan.add(prefix + ".scales", ops::kScaledRows * sizeof(float), bounds_.device);
  }
  void allocate(Arena& arena, const std::string& prefix) override {
    statistic_.allocate(arena, prefix);
    ids_ = static_cast<int32_t*>(arena.take(prefix + ".lists"));
    n_ = static_cast<int32_t*>(arena.take(prefix + ".counts"));
    scales_ = static_cast<float*>(arena.take(prefix + ".scales"));
  }

  void observe(int layer, const kv::Step& step, const Observed& rows) override {
    const bool is_prompt = step.phase == kv::Phase::prefill;
    ops::add_squares({.to = statistic_.of(layer),
                      .x = rows.product,
                      .scales = scales_,
                      .comm = exec_.comm,
                      .blend = is_prompt ? 0 : refresh_},
                     step.arrays, bounds_.shape.ffn_dim, exec_.stream());
    if (is_prompt) return;
    // Slots of a recorded step are known on the device alone: there all sequences choose again.
    if (exec_.on_gpu()) return choose(0, bounds_.max_seqs, layer, 1);
    for (const int32_t slot : step.slot) choose(slot, 1, layer, 1);
  }
  void on_prompt(int slot) override { choose(slot, 1, 0, bounds_.shape.n_layers); }

  Selection select(int layer, const kv::Step&, const Tensor&) override {
    return {.kind = Selection::Kind::sequences,
            .list = {ids_ + layer * int64_t{keep_}, n_ + layer, keep_},
            .id_stride = int64_t{bounds_.shape.n_layers} * keep_,
            .n_stride = bounds_.shape.n_layers};
  }

  void on_fork(int from, int to) override {
    statistic_.fork(from, to, exec_);
    const size_t layers = static_cast<size_t>(bounds_.shape.n_layers);
    copy(ids_of(to), ids_of(from), layers * static_cast<size_t>(keep_) * sizeof(int32_t), exec_);
    copy(n_of(to), n_of(from), layers * sizeof(int32_t), exec_);
  }
  void on_release(int slot) override { statistic_.clear(slot, exec_); }

 private:
  size_t n_lists() const {
    return static_cast<size_t>(bounds_.max_seqs) * static_cast<size_t>(bounds_.shape.n_layers);
  }
  int32_t* ids_of(int slot) const { return ids_ + slot * int64_t{bounds_.shape.n_layers} * keep_; }
  int32_t* n_of(int slot) const { return n_ + slot * int64_t{bounds_.shape.n_layers}; }

  /// Lists of some layers of some slots.
  void choose(int first_slot, int n_slots, int first_layer, int n_layers) {
    const Shape& s = bounds_.shape;
    // One list a call in slots, or the layers of one: both lie at one distance.
    const bool over_slots = n_layers == 1;
    const int64_t lists = over_slots ? s.n_layers : 1;
    ops::choose_channels({.ids = ids_of(first_slot) + first_layer * int64_t{keep_},
                          .n = n_of(first_slot) + first_layer,
                          .scores = statistic_.sums(first_slot) + first_layer * int64_t{s.ffn_dim},
                          .id_stride = lists * keep_,
                          .n_stride = lists,
                          .score_stride = lists * s.ffn_dim,
                          .n_lists = over_slots ? n_slots : n_layers,
                          .n_channels = s.ffn_dim,
                          .keep = keep_},
                         exec_.stream());
  }

  Bounds bounds_;
  int keep_;
  float refresh_;
  Needs needs_;
  LayerSums statistic_;
  int32_t *ids_ = nullptr, *n_ = nullptr;  // [max_seqs, n_layers, keep], [max_seqs, n_layers]
  float* scales_ = nullptr;                // of a step's rows
};

}  // namespace

std::unique_ptr<Policy> make_griffin(const recipe::Sparse& sparse, const Bounds& bounds) {
  return std::make_unique<Griffin>(sparse, bounds);
}

}  // namespace tandem::ffn
