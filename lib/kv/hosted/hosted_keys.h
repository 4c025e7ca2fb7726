#pragma once
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/bound_threads.h"
#include "kv/paged_store.h"
#include "tensor/pinned_pages.h"

namespace tandem::kv {

/// Keys and values of the layers whose long texts lie in host memory. `far`, there, has the
/// committed tokens, but for some of the newest; `near`, on the forward's device, those that ranges
/// read, and rows in flight; `prompt`, there too, one layer of the texts that go through the layers
/// together. Far holds tokens under the page ids of the whole store, near and prompt each under
/// others. A slot's text is far, or it is split between near and far.
class HostedKeys {
 public:
  static constexpr int kWholeRing = 8;  // eighths of a layer
  struct Spec {
    std::vector<int> layers;  // rising
    PagedStore::Spec whole;   // the store of the other layers
    int near_tokens = 0;      // of one sequence in near, at most
    int near_slots = 0;       // sequences that are split at once; 0: all
    /// Tokens of copies and ranges of each further reader, of one sequence, and how many sequences
    /// have them at once.
    std::vector<int> reader_tokens = {};
    int reader_slots = 0;
    int prompt_tokens = 0;           // of texts that go through the layers together
    bool streamed = false;           // a KeyStream's ring is the memory of prompt
    int ring_eighths = kWholeRing;   // of a layer, that it has room for beyond one layer
    bool eight_bit = false;          // far keys and values are, as Pages'
    bool index_reads_prompt = true;  // not far, as prompts are indexed
    // Who reads far keys, copies of a GPU left out:
    bool gpu_reads = false;  // its kernels, over the link
    bool cpu_reads = false;  // this machine's threads, which are bound to cores

    /// Pages of the ring beyond one for each of the whole store.
    int spare_pages() const {
      return layers.size() < 2 ? 0 : (whole.n_pages * ring_eighths + kWholeRing - 1) / kWholeRing;
    }
  };
  static void plan(const Spec& spec, MemoryPlan& plan);

  /// whole    the store of the same sequences; outlives this
  /// errors   kind memory: a GPU's kernels are to read memory that cannot be pinned
  HostedKeys(const Spec& spec, PagedStore& whole, Arena& arena, const Exec& exec);

  bool holds(int layer) const { return far_.holds(layer); }
  const PagedStore& far() const { return far_; }
  PagedStore& near() { return near_; }
  const PagedStore& near() const { return near_; }
  const PagedStore& prompt() const { return prompt_; }
  /// Pages in prompt; a text needs whole ones.
  int prompt_pages() const { return prompt_.spec().n_pages; }
  /// Why a GPU's far keys are not pinned, so that copies are slower; empty where they are.
  const std::string& why_unpinned() const;

  /// Sequences come and go after those of the whole store, with the same slots.
  void acquire(int slot);
  void fork(int from, int to);
  void release(int slot);

  /// The sequence of near that holds what the i-th further reader has copied of a slot's far keys.
  /// It is there from the start on, without tokens.
  int copies_slot(int i, int slot) const { return (1 + i) * far_.spec().max_slots + slot; }
  /// Notes that a further reader has read bytes of far keys and values to make a choice.
  void count_read(double bytes) { read_bytes_ += bytes; }
  /// Of all choices since the start.
  double read_bytes() const { return read_bytes_; }
  /// `begin` says the first token of a slot that ranges read.
  void read_from(std::function<int(int slot)> begin) { range_begin_ = std::move(begin); }
  /// Near frees tokens of a slot that no range reads; far has all of its tokens.
  void make_room(int slot);

  bool is_split(int slot) const { return slots_[static_cast<size_t>(slot)].split; }
  /// The slot's committed text is far from now on.
  void hold_far(int slot);
  /// It is split from now on, with the tokens from `begin` on in near.
  void hold_split(int slot, int begin);
  /// Other texts are about to go through the layers: those before them leave prompt.
  void begin_prompts();
  /// The slot's text is among them, with n tokens: it is far from now on.
  /// errors   kind memory: prompt has no room left for it
  void hold_prompt(int slot, int n);
  /// They are about to go through a layer: in prompt are the committed tokens that they follow.
  void begin_layer(int layer, int slot, int n_before);
  /// Rows of a step of prompts.
  struct Rows {
    int slot, begin, end;
  };
  /// The i-th step is about to write its rows of a layer to prompt.
  void begin_step(size_t i);
  /// Prompts have gone through a layer: far gets what their steps wrote to prompt. Copies of a GPU
  /// are made on a separate queue while it goes on, those of a step before the same step of the
  /// next layer; of rows that become narrow on the forward's, since they pass through one place.
  /// index    makes an index from prompt, whose rows are those of far by then; the queues have its
  ///          work before copies that follow the layer. Null: there is nothing to make
  void end_layer(int layer, std::span<const std::vector<Rows>> steps,
                 const std::function<void()>& index = nullptr);
  /// Where those copies are made.
  Exec prompt_copies() const { return narrow_ ? exec_ : Exec{copies_.get()}; }
  /// On a GPU, the separate queue: of an index, too.
  cuda::Queue& copies() { return *copies_; }
  /// Waits for it.
  /// errors   kind device
  void finish_copies();
  /// All committed tokens of the slot have been written to far; waits for copies from a GPU.
  void wrote_far(int slot);
  /// Tokens were committed. A split text's newest may not be in far yet, at most `recent` of them.
  void committed(int slot, int recent);
  /// Far gets the committed tokens that it lacks.
  void store(int slot);
  /// Tokens were taken back from the end. Before: store.
  void cut(int slot);
  /// Frees pages past the end.
  void free_end(int slot) {
    if (at(slot).split) near_.truncate(slot, near_.length(slot));
  }

 private:
  struct Slot {
    bool split = false;
    int far = 0;  // tokens that far has
  };
  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }

  PagedStore far_, prompt_, near_;
  Exec exec_;
  bool narrow_;         // rows of far
  bool rounds_prompt_;  // its keys become those of far
  // With a GPU:
  PinnedPages pinned_k_, pinned_v_, pinned_scales_;  // of far
  std::unique_ptr<BoundThreads> bound_;
  std::unique_ptr<cuda::Queue> copies_;
  std::unique_ptr<cuda::Event> written_;              // a layer of prompt
  std::vector<std::unique_ptr<cuda::Event>> copied_;  // [steps] of the layer before
  std::vector<Slot> slots_;
  std::function<int(int slot)> range_begin_;
  double read_bytes_ = 0;
  std::set<int> texts_;  // slots with pages in prompt
};

}  // namespace tandem::kv
