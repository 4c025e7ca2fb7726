#pragma once
#include <memory>
#include <vector>

#include "ffn/policy.h"
#include "kv/sequence_listener.h"

namespace tandem::ffn {

/// Lists of channels that steps have read, and how many are in them.
struct ListsRead {
  int64_t lists = 0, channels = 0;
};

/// The runtime of FFN policies: an engine's list of them, and the channels of the step in flight.
/// Reading n of channels (kv::Reading) is the n-th policy, from 1 on.
class Channels final : public kv::SequenceListener {
 public:
  struct Spec {
    Shape shape;
    int max_seqs = 1;
    Device device = {};
    std::vector<recipe::Sparse> policies;
    std::string fingerprint = {};  // of the model
  };
  /// errors   as make_policy's
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// exec     the device of the spec
  Channels(const Spec& spec, Arena& arena, const Exec& exec);

  bool any() const { return !policies_.empty(); }
  int n_policies() const { return static_cast<int>(policies_.size()); }
  /// Of a reading of channels, from 1 on.
  const Policy& policy(int reading) const { return *policies_[static_cast<size_t>(reading) - 1]; }
  void read_weights(int layer, const LayerWeights& weights);

  /// Whether the rows of a step are read by lists.
  static bool reads_lists(const kv::Step& step) {
    return step.reading.channels > 0 && step.phase == kv::Phase::extend &&
           step.arrays.n_rows <= kMaxRows;
  }
  /// Returns true if the policy of such a step selects by act(g).
  bool comes_after_gate(const kv::Step& step) const {
    return policy(step.reading.channels).needs().after_gate;
  }
  /// Whether a policy observes a step's rows, and both halves too.
  bool observes(const kv::Step& step) const;
  bool observes_gate_up(const kv::Step& step) const;
  void observe(int layer, const kv::Step& step, const Observed& rows);
  /// The channels that all rows of such a step read in a layer; no ids: all.
  /// gate     as Policy::select's
  ops::ChannelList select(int layer, const kv::Step& step, const Tensor& gate);

  /// Of lists that are the sequences' own: a number that changes whenever those of a slot do, and
  /// where the list of a step's first sequence lies, [most_channels].
  int64_t version(int slot) const { return versions_[static_cast<size_t>(slot)]; }
  const int32_t* list_of(int reading, int layer, const kv::Step& step);

  void on_prompt(int slot) override;
  void on_fork(int from, int to) override;
  void on_release(int slot) override;
  void on_truncate(int slot, int n) override;

  /// Lists that steps have read by a policy since the start, over all layers: unions, and those
  /// whose number gates decide; none of others. On a GPU after waiting for the queue.
  ListsRead lists_read(int reading) const;
  /// Share of the channels, of up and down, that steps have read by a policy since `before`: of
  /// lists_read, as expected where it has none.
  double share_read(int reading, const ListsRead& before = {}) const;

 private:
  static bool observes(const Policy& p, const kv::Step& step);
  /// The union of the lists of a step's sequences, in all layers.
  void unite(const kv::Step& step, const Selection& of_slots);

  Spec spec_;
  Exec exec_;
  std::vector<std::unique_ptr<Policy>> policies_;
  std::vector<int64_t> versions_;  // [max_seqs]
  int64_t newest_version_ = 0;
  int32_t *united_ = nullptr, *n_united_ = nullptr;  // [n_layers, F], [n_layers]
  int64_t* counted_ = nullptr;  // [policies, n_layers, 2] unions that were made, and their channels
};

}  // namespace tandem::ffn
