#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kv/attention_observer.h"
#include "kv/device_step.h"
#include "kv/hosted/host_attention.h"
#include "kv/hosted/hosted_keys.h"
#include "kv/list_attention.h"
#include "kv/page_groups.h"
#include "kv/policy.h"
#include "kv/readers.h"
#include "kv/residence.h"
#include "kv/sequence_listener.h"
#include "ops/attention.h"
#include "ops/rope_table.h"

namespace tandem::kv {

/// The runtime of attention: the paged store, the policies that share it, and the step in flight.
class Cache {
 public:
  struct Spec {
    Geometry geometry;
    int max_seqs = 1;  // sequences alive at once
    /// Of them, those with text of their own: not the forks that add at most
    /// TokenIndex::kMaxForkTokens to a prompt, which need no room in a policy's index. 0 = all.
    int max_prompts = 0;
    int max_drafted = 0;       // of them, those that policies beyond the first read; 0 = all
    int max_extended = 0;      // of them, those that extend steps serve; 0 = all
    int max_tokens = 0;        // of one sequence, tentative rows included
    int64_t total_tokens = 0;  // over all sequences, shared prefixes counted once
    /// Of one sequence after its prompt, or of a fork beyond what it shares; 0 = any number.
    int max_appended = 0;
    int max_rows = 0;         // rows of one step, or of all levels of one tree
    int max_prompt_rows = 0;  // all steps of one begin_prompts; 0 = max_rows
    int max_extend_rows = 0;  // of one that policies serve; 0 = max_rows
    int max_draft_rows = 0;   // of one sequence in a step of drafted rows, and StepSpec::ahead
    int max_tree_rows = 0;    // of steps with trees that attention is to be fast for
    /// Where keys are streamed from host memory: eighths of a layer that their ring has room for
    /// beyond one layer, 1 to 8.
    int ring_eighths = HostedKeys::kWholeRing;
    std::vector<recipe::Cache> policies;
    /// By policy, the channels that a step of its sequences reads which names no reading; those
    /// beyond the end read all.
    std::vector<int> channels = {};
    Device device = {};
    int multiprocessors = 0;  // of the GPU, on one
    int block_shared_bytes = 0;
    Interrupted interrupted = {};  // polled while the host waits in the midst of a step
  };
  /// Steps that may go through the model side by side.
  static constexpr int kMicroBatches = 2;
  /// errors   kind recipe, kind device (a policy that has no GPU code)
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// Of a plan of it, bytes of host memory that are pinned on a GPU: keys, and what policies name.
  static size_t pinned_bytes(const Spec& spec, const MemoryPlan& plan);

  /// exec     the device of the spec
  Cache(const Spec& spec, Arena& arena, std::span<const ops::RopeTable> ropes,
        const Exec& exec = {});

  /// A new, empty sequence and who reads it.
  int create(Readers readers = {});
  /// A new sequence that shares the committed tokens of `slot`. A reader that `slot` does not have
  /// sees them as a prompt.
  /// errors   kind input when a reader needs tokens that were evicted; kind memory
  int fork(int slot, Readers readers);
  void release(int slot);
  int length(int slot) const { return store_.length(slot); }
  Readers readers_of(int slot) const { return readers_[static_cast<size_t>(slot)]; }
  /// The policy of a sequence with one reader.
  const Policy& policy_of(int slot) const { return policy(readers_of(slot).front()); }
  const std::string& kind_of(int slot) const { return needs(readers_of(slot).front()).kind; }
  /// Drops committed tokens from the end.
  /// errors   kind input when `n` would need keys that the policy gave back
  void truncate(int slot, int n);

  /// Takes the last tokens of `slot` back from its committed ones, down to `n`, to be run again: as
  /// truncate, but the sequence keeps its pages.
  void uncommit(int slot, int n);

  /// Gives an empty sequence n committed tokens; the caller writes their K and V and then calls
  /// adopt_prompt.
  /// has      says whether a layer gets a page; one with a window gets those that may be read
  /// errors   kind memory
  void adopt_pages(int slot, int n, const std::function<bool(int layer, int page)>& has);
  /// errors   kind recipe where keys are quantized: `what` is not supported then
  void refuse_quantized(std::string_view what) const;
  /// Tells the readers that the committed tokens of `slot` are a prompt whose K and V are in the
  /// store, though no prefill ended there (restored or random ones, or a beginning that forks
  /// share).
  void adopt_prompt(int slot);

  /// Lays out a step: pages for the new rows, positions, page tables. It stays valid until its
  /// sequences change, whatever else is laid out; on a GPU without an outbox at most
  /// DeviceStep::kWaiting steps may wait to run. A prefill that continues tokens which a policy has
  /// cut runs as `extend`: the dense keys no longer exist. All sequences of a prefill are cut, or
  /// none is, or neighbours would decide which keys a prompt sees.
  /// errors   kind memory when pages run out
  Step begin(const StepSpec& spec);
  /// Lays out trees that go through the model level by level, one step each, in which rows see
  /// their ancestors in the levels before. On a GPU one copy brings all of them. Only the last step
  /// that has run is committed, if any: `kept` and `paths` then count the rows of all levels.
  /// shapes   level_ends[b] [levels] rows of sequence b's tree up to and with a level: the same
  ///          number of levels for all, and rows of every sequence in each
  std::vector<Step> begin_levels(const StepSpec& spec,
                                 std::span<const std::vector<int>> level_ends);
  /// Lays out the steps of prompts, each as if those before it were committed, which happens later,
  /// in their order. On a GPU their arrays are sent before each use (begin_step). Where keys are in
  /// host memory the prompts that went before them must have gone through all layers.
  /// errors   kind memory when pages run out: nothing is laid out
  std::vector<Step> begin_prompts(std::span<const std::vector<SeqRows>> rows);
  /// Lays out an extend step, or a tree's levels, again: as many rows of trees of the same shapes,
  /// after the tokens committed so far. Recomputes only row positions and page slots; masks and
  /// depths are reused.
  /// slots    [n_seqs] the sequences, read as those of the steps
  /// outbox, ahead   as StepSpec's
  /// errors   kind memory when pages run out: the steps are as they were
  void begin_again(std::span<Step> steps, std::span<const int32_t> slots, Outbox* outbox = nullptr,
                   int ahead = 0);
  /// Attention of one layer; K and V of the rows must be in the store (k(layer), v(layer)).
  /// shapes   out, q [R, n_heads, head_dim]; lse [R, n_heads] natural log, of a prefill; or null
  void attend(int layer, const Step& step, const Tensor& out, const Tensor& q,
              float* lse = nullptr);
  /// The same in two parts, between which other work may be put on the queue, that of another
  /// micro-batch too. Where the host attends keys, the caller lets it do so by `serve`, once all
  /// work up to the second part is on the queue.
  void attend_begin(int layer, const Step& step, const Tensor& out, const Tensor& q,
                    float* lse = nullptr);
  void attend_end(int layer, const Step& step, const Tensor& out, float* lse = nullptr);
  /// The host's part of a forward whose work is on the queue, at all layers where it has one.
  /// steps    as they go through the model side by side
  /// errors   kind interrupted, kind device: the forward's results mean nothing, its work is over
  void serve(std::span<const Step> steps);
  /// What another reading of the step's sequences makes of a layer, from the same queries, keys and
  /// values. For an observer, while it is called: the step's own result, counts and all
  /// indexes stay as they are.
  /// result   what it read; no queries where it reads all that full attention does
  KeyUsage attend_as(Reading reading, int layer, const Step& step, const Tensor& q,
                     const AttendAs& to);
  /// Calls `observer` from now on; null: none. On the CPU.
  void observe(AttentionObserver* observer);
  /// Reports what happens to sequences to `listener` from now on; null: to none.
  void notify(SequenceListener* listener) { listener_ = listener; }
  /// Keeps the first `kept[b]` rows of each sequence, counted from the first after the committed
  /// tokens: those of the levels before are among them.
  void commit(const Step& step, std::span<const int> kept);
  /// Keeps all rows.
  void commit(const Step& step);
  /// Keeps rows of an extend step by the sequences that they belong to; others may have been laid
  /// out since.
  /// kept     [slots] as commit's
  void keep(std::span<const int32_t> slots, std::span<const int> kept);
  /// Reports to the readers of a slot how a round ended, before it is kept: of `offered` tokens
  /// drafted one after another `accepted` were right.
  void report_round(int slot, int accepted, int offered) {
    for_readers(slot, [&](Policy& p, int) { p.on_round(slot, accepted, offered); });
  }
  /// Committed tokens of a slot with which its rows under a reading see keys by another rule: those
  /// of a round are kept up to there, and not beyond, so that each row reads what it reads in a
  /// step for itself.
  int next_change(int slot, Reading reading) const {
    return std::min(policy(reading.keys).next_change(slot), residence_->next_change(slot));
  }
  /// Moves the keys of accepted paths next to their roots, as work that a graph may record: a GPU
  /// knows paths before the host does. A commit of as many rows follows.
  void move_paths(const Step& step, const PagedStore::AcceptedPaths& paths) {
    residence_->move_paths(step, paths);
    if (queries_) queries_->move_paths(paths, step);
  }

  LayerKeys keys(int layer, const Step& step) const { return residence_->keys(layer, step); }
  /// Store of full texts, without what a layer's window has evicted. It is the host's for layers
  /// whose keys are there, of texts that were stored since their last tokens were committed. Its
  /// pools may be of eight bits (kv/pages.h).
  const PagedStore& whole_store(int layer) const { return residence_->whole(layer); }
  Tensor k(int layer) const { return whole_store(layer).k(layer); }
  Tensor v(int layer) const { return whole_store(layer).v(layer); }
  Residence& residence() { return *residence_; }
  const Residence& residence() const { return *residence_; }
  /// True if the CPU works within a GPU's steps.
  bool serves_steps() const { return !served_.empty(); }
  /// Between Residence::begin_layer and end_layer the i-th of the steps is about to go through a
  /// layer. On a GPU its arrays are brought again, for work from now on.
  void begin_step(int layer, std::span<Step> steps, size_t i);
  const Geometry& geometry() const { return spec_.geometry; }
  const Policy& policy(int i) const { return *policies_[static_cast<size_t>(i)]; }
  const Needs& needs(int policy) const { return needs_[static_cast<size_t>(policy)]; }
  int n_policies() const { return static_cast<int>(policies_.size()); }
  /// All policies, for a sequence that each of them is to read.
  Readers all_readers() const { return Readers::first(n_policies()); }
  /// The first page group's.
  const PagedStore& store() const { return store_; }
  PagedStore& store() { return store_; }
  /// The newest queries; null unless a policy needs them.
  const QueryRing* queries() const { return queries_.get(); }
  QueryRing* queries() { return queries_.get(); }

  /// Most rows of a step.
  int max_rows() const { return spec_.max_rows; }
  /// Rows of one sequence that an extend step takes, unless they are drafted.
  int max_extend_rows_a_seq() const;

  /// Keys that rows of a policy have read since the start.
  const KeyUsage& usage(int policy) const { return usage_[static_cast<size_t>(policy)]; }
  /// The same with what a GPU knows of it; waits for its queue.
  KeyUsage total_usage(int policy) const {
    return usage(policy).plus(policies_[static_cast<size_t>(policy)]->device_usage());
  }

  /// True if keys that dense attention would read were freed.
  bool is_cut(int slot) const;
  /// First token that a row at position `n` <= length would read although it was given back; -1 =
  /// none.
  int missing_token(int slot, int n) const;

 private:
  template <class Visit>
  void for_readers(int slot, const Visit& visit) {
    for (int i = 0; i < n_policies(); ++i)
      if (readers_of(slot).has(i)) visit(*policies_[static_cast<size_t>(i)], i);
  }
  void go_back(int slot, int n, bool frees_pages);
  /// One layer's attention by a plan.
  struct Attention {
    int layer;
    const Step& step;
    const AttendPlan& plan;
    const Tensor &out, &q;
    float* lse;           // or null
    KeyUsage& usage;      // what lists read is added
    bool scores = false;  // a single range leaves them
    const ListVisitor* on_list = nullptr;
  };
  /// What attend_begin leaves to attend_end.
  struct Parts {
    int n = 0;                      // partial results to merge; 0: the output is there
    HostAttention* host = nullptr;  // makes the last one
  };
  Parts attend_parts(const Attention& a);
  void merge_parts(const Parts& parts, const Step& step, const Tensor& out, float* lse);
  /// The i-th partial result of a step.
  float* part_o(const Step& step, int64_t n_rows, int i) const;
  float* part_lse(const Step& step, int64_t n_rows, int i) const;
  /// Attention over the lists of a plan's selector, into the i-th partial result.
  void attend_selected(const Attention& a, int i);
  /// The host's attention to keys of a layer while a GPU is at it; null: it has no part there.
  HostAttention* host_of(int layer, const Step& step) const {
    return serves_steps() && residence_->reads_far(layer, step)
               ? served_[static_cast<size_t>(step.micro_batch)].get()
               : nullptr;
  }
  /// The host's part at a layer.
  void serve_layer(int layer, const Step& step);
  /// Attention over whole texts whose keys come from host memory, in a store that they pass.
  void attend_passing(const Attention& a, const PagedStore& keys);
  /// On a GPU, attention over the lists of a plan, into partial results from `first_part` on.
  /// Returns how many.
  int attend_lists(const Attention& a, int first_part);
  /// Whether a step leaves scores in layers without a window: one of all keys, of sequences that a
  /// policy reads which asks for them.
  bool leaves_scores(const Step& step) const;
  /// Whether a policy asks for the scores of a step: it reads all of its sequences.
  bool asks_scores(const Step& step, int policy) const;
  /// lo       [n_seqs] of each range, or null: what it begins with
  void count_fixed(const Step& step, std::span<const int32_t* const> lo, KeyUsage& usage) const;
  void count_dense(int layer, const Step& step);
  Step lay_out(const StepSpec& spec);
  /// Gives laid out steps their arrays.
  void publish(std::span<Step> steps, Outbox* outbox);
  void add_rows(Step& step, const SeqRows& rows, const Tree* tree);
  /// Which policy a step of these rows reads.
  Reading reading_of(const StepSpec& spec) const;
  /// Tokens of a sequence that its readers may need.
  Retention retention(int slot) const;

  Spec spec_;
  Exec exec_;
  PageGroups groups_;
  PagedStore& store_;  // the first group's
  std::span<const ops::RopeTable> ropes_;
  std::unique_ptr<QueryRing> queries_;
  std::unique_ptr<ScoreStore> scores_;  // when a policy needs them
  std::vector<std::unique_ptr<Policy>> policies_;
  std::vector<Needs> needs_;              // by policy
  std::unique_ptr<Residence> residence_;  // calls policies, and so goes before them
  std::vector<Readers> readers_;          // by slot
  ops::AttentionWorkspace workspace_;
  // When plans give several partial results:
  float* partial_o_ = nullptr;                          // [parts, max_rows, n_heads, head_dim]
  float* partial_lse_ = nullptr;                        // [parts, max_rows, n_heads]
  void* q_shifted_ = nullptr;                           // [max_rows, n_heads, head_dim]
  std::unique_ptr<ListAttention> lists_;                // when a policy has a selector
  std::vector<std::unique_ptr<HostAttention>> served_;  // [kMicroBatches], where it serves a GPU
  std::array<Parts, kMicroBatches> pending_;            // between attend_begin and attend_end
  size_t n_parts_ = 1;                                  // partial results of a plan, at most
  double cpu_share_ = 1;                     // of lists that a GPU chose, what the host attends
  std::vector<KeyUsage> usage_;              // by policy
  std::unique_ptr<DeviceStep> device_step_;  // on a GPU
  AttentionObserver* observer_ = nullptr;
  SequenceListener* listener_ = nullptr;
};

}  // namespace tandem::kv
