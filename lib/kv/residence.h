#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/page_groups.h"
#include "kv/policy.h"
#include "kv/readers.h"

namespace tandem::kv {

/// Pools that a layer's rows of a step go to, and that ranges read; and the step's arrays with the
/// pages of these.
struct LayerKeys {
  Tensor k, v;
  const ops::StepArrays& step;
};

/// The pages of a cache's sequences. This class keeps them on the forward's device, in the page
/// groups; hosted_residence.h keeps those of some layers of the first group in host memory.
class Residence {
 public:
  explicit Residence(PageGroups& groups) : groups_(groups), whole_(groups.store(0)) {}
  virtual ~Residence() = default;

  struct Facts {
    bool by_layers = false;     // prompts go through the model layer by layer (begin_prompts)
    bool streams_keys = false;  // their keys go to a GPU in every step, ahead and beyond its end
    bool quantized = false;     // some layers are in codes: no store has whole texts of them
    /// Pages of the texts that begin_prompts takes at once, whole ones of each; no text has more.
    int prompt_pages = std::numeric_limits<int>::max();
    /// The reason why keys in host memory, or their index, are not pinned, which makes copies
    /// slower; empty where they are.
    std::string why_unpinned = {};
  };
  const Facts& facts() const { return facts_; }
  /// Policies of the run, set up, and who reads each slot; all outlive this.
  virtual void connect(std::span<const std::unique_ptr<Policy>>, std::span<const Readers>) {}

  // Sequences:
  virtual int acquire() { return groups_.acquire(); }
  virtual int fork(int slot) { return groups_.fork(slot); }
  virtual void release(int slot) { groups_.release(slot); }
  /// Makes room for rows up to n tokens.
  /// errors   kind memory when pages run out
  virtual void reserve(int slot, int n, Phase) { groups_.reserve(slot, n); }
  /// Commits rows of a step: the slot has n tokens.
  virtual void commit(int slot, int n, Phase) { groups_.set_length(slot, n); }
  /// Takes the committed tokens as a prompt, whose keys the whole store has.
  virtual void adopt(int /*slot*/) {}
  virtual void evict(int slot, const Retention& needed) { groups_.evict(slot, needed); }
  /// Takes tokens from n on back; pages of the groups stay.
  virtual void cut(int slot, int n, bool /*frees_pages*/) { groups_.set_length(slot, n); }
  /// Gives the whole store what it lacks of a text.
  virtual void store(int /*slot*/) {}

  /// The length of a slot with which the place of its keys changes, and so what rows read of them.
  virtual int next_change(int /*slot*/) const { return std::numeric_limits<int>::max(); }

  // Steps:
  virtual void lay_out_tables(Phase, std::span<const int32_t> slots) {
    groups_.lay_out_tables(slots);
  }
  /// Tables of all groups, and of near keys.
  virtual std::vector<const PageTables*> tables() const {
    std::vector<const PageTables*> all;
    for (size_t g = 0; g < groups_.size(); ++g) all.push_back(&groups_.tables(g));
    return all;
  }
  virtual std::optional<NearRows> near_rows(int /*slot*/, Phase, Reading) const { return {}; }
  /// Moves the keys of accepted paths, as Cache.
  virtual void move_paths(const Step& step, const PagedStore::AcceptedPaths& paths) {
    whole_.move_paths(paths, step.arrays);
    for (size_t g = 1; g < groups_.size(); ++g)
      groups_.store(g).move_paths(paths, step.groups[g - 1].arrays);
  }

  // Layers:
  virtual LayerKeys keys(int layer, const Step& step) const {
    const size_t g = groups_.of(layer);
    const PagedStore& store = groups_.store(g);
    return {store.k(layer), store.v(layer), g == 0 ? step.arrays : step.groups[g - 1].arrays};
  }
  /// The store of full texts (Cache::whole_store), and that of the keys that a policy indexes.
  virtual const PagedStore& whole(int layer) const { return groups_.store(groups_.of(layer)); }
  virtual const PagedStore& indexed(int /*policy*/) const { return whole_; }

  /// Steps of begin_prompts are about to go through a layer, or have gone. Needed where keys are in
  /// host memory, and the only way there to read prompts.
  virtual void begin_prompts() {}
  virtual void begin_layer(int /*layer*/, std::span<const Step>) {}
  virtual void begin_step(int /*layer*/, size_t /*i*/) {}
  virtual void end_layer(int /*layer*/, std::span<const Step>) {}
  /// They have gone through all layers; the same but not to be committed.
  virtual void end_prompts() {}
  virtual void give_up_prompts() noexcept {}

  /// True: ranges of a layer begin where the step's near_lo says.
  virtual bool reads_near(int /*layer*/, const Step&) const { return false; }
  /// True: rows of a step read a layer's keys in host memory, not copies of some.
  virtual bool reads_far(int /*layer*/, const Step&) const { return false; }
  /// A store that all these keys pass on their way to the device, until `passed`; null: none.
  virtual const PagedStore* passing(int /*layer*/, const Step&) { return nullptr; }
  virtual void passed(int /*layer*/, const Step&, const PagedStore&) {}
  /// Attends all these keys on the CPU; false: only lists of them are read.
  /// shapes   q [R, n_heads, head_dim], o [R, n_heads, head_dim], lse [R, n_heads] on the host
  virtual bool attend_far(int /*layer*/, const Step&, const Tensor& /*q*/, float* /*o*/,
                          float* /*lse*/) {
    return false;
  }

  /// Bytes of one token's key and value in a layer, all KV heads.
  virtual double token_bytes(int /*layer*/) const {
    const PagedStore::Spec& s = whole_.spec();
    return 2.0 * s.n_kv_heads * s.head_dim * static_cast<double>(dtype_bytes(s.dtype));
  }
  /// Bytes of keys and values that went from host memory to the device since the start, those among
  /// them that choices of a further reader took.
  virtual double streamed_bytes() const { return 0; }
  /// Waits until no copies of keys run ahead.
  /// errors   kind device
  virtual void settle() const {}

 protected:
  PageGroups& groups_;
  PagedStore& whole_;  // the first group's
  Facts facts_;
};

}  // namespace tandem::kv
