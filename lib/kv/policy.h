#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gather/attend_lists.h"
#include "kv/hosted/hosted_index.h"
#include "kv/key_list.h"
#include "kv/paged_store.h"
#include "kv/query_ring.h"
#include "kv/score_store.h"
#include "kv/step.h"
#include "ops/score_scale.h"
#include "recipe/sections.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// The first and the newest tokens of a sequence, a row's own included among the newest.
struct Retention {
  int sinks = 0;
  int recent = std::numeric_limits<int>::max();

  /// Cuts it to a layer's window; 0: there is none.
  Retention within(int window) const {
    return {sinks, window == 0 ? recent : std::min(recent, window)};
  }
  /// What two readers need together.
  Retention with(const Retention& other) const {
    return {std::max(sinks, other.sinks), std::max(recent, other.recent)};
  }
};

/// Window, RoPE and score scale of one layer.
struct LayerAttention {
  int window = 0;  // the model's own, in tokens; 0 = none
  int rope = 0;    // index of the model's RoPE tables
  ops::ScoreScale scale;
};

/// What attention needs to know of a model.
struct Geometry {
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::bf16;
  // [n_layers], or empty: no windows, one rotation, and scores over sqrt(head_dim).
  std::vector<LayerAttention> layers = {};

  LayerAttention at(int layer) const {
    return layers.empty() ? LayerAttention{.scale = {.of = static_cast<double>(head_dim)}}
                          : layers[static_cast<size_t>(layer)];
  }
  int window(int layer) const { return at(layer).window; }
  ops::ScoreScale scale(int layer) const { return at(layer).scale; }
  /// Tokens that full attention may need in the layers that keep most of them.
  Retention dense_retention() const {
    Retention retention{.recent = 0};
    for (int layer = 0; layer < n_layers; ++layer) {
      if (window(layer) == 0) return {};
      retention = retention.with({.recent = window(layer)});
    }
    return retention;
  }
  int group() const { return n_heads / n_kv_heads; }
  /// Bytes of one token's key and value in a layer.
  double token_bytes() const {
    return 2.0 * n_kv_heads * head_dim * static_cast<double>(dtype_bytes(dtype));
  }
  /// Keys that the last of `length` tokens sees under full attention.
  int visible(int layer, int length) const {
    const int w = window(layer);
    return w == 0 || length < w ? length : w;
  }
};

/// What bounds a run, for policies that hold data of their own.
struct Bounds {
  Geometry geometry;
  int max_seqs = 1;          // sequences alive at once
  int max_prompts = 0;       // of them, all but forks that add few tokens (cache.h); 0 = all
  int max_read = 1;          // of them, those that this policy reads
  int max_rows = 1;          // of one extend step
  int max_tokens = 0;        // of one sequence
  int64_t total_tokens = 0;  // over all sequences, shared prefixes counted once
  int max_appended = 0;      // of one sequence after its prompt (cache.h); 0 = any number
  Device device = {};        // where keys are chosen
  bool hosted = false;       // they are in host memory: ranges may be read elsewhere
  /// Names for a further reader the layers whose keys the first has in host memory
  /// (kv/hosted/hosted_keys.h): ranges of these read near keys, and lists copies of others.
  std::vector<int> far_layers = {};
  bool quantized = false;      // layers without a window have keys in codes
  bool follows = false;        // a further reader: steps of the first one commit what it reads
  Device prompts = {};         // where prompts are read
  int block_shared_bytes = 0;  // of the GPU, on one: what a block may have; 0: not known

  bool on_gpu() const { return device.kind == Device::Kind::cuda; }
};

/// A source over the paged store: rules on absolute key positions, evaluated per row in the kernel.
/// A row at position p sees key j if key_lo <= j < key_hi and (j < sinks or window == 0 or
/// p - j < window), and of the new rows those that chain or tree allow.
struct KeyRange {
  int32_t key_lo = 0;
  int32_t key_hi = std::numeric_limits<int32_t>::max();
  int32_t sinks = 0;
  int32_t window = 0;
  /// Rows beyond this position query as if they stood at it; -1 = true
  /// positions.
  int32_t q_position_max = -1;
  /// [B] a lower bound for each sequence, beside key_lo; null = none. Lives as long as the plan.
  const int32_t* seq_key_lo = nullptr;
  /// On a GPU: chosen keys that all rows of a sequence see in addition, in the arrays of
  /// kernels/attention/attention.h. A step that ops::takes_lists.
  KeyLists lists = {};
};

/// Union of disjoint sources; the runtime merges their partial results.
struct AttendPlan {
  std::array<KeyRange, 4> sources;
  int n = 0;
  const KeySelector* selector = nullptr;  // one more source: lists of keys
  /// One more source: all tokens before HostedIndex::range_begin, where keys are in host memory and
  /// the CPU attends them (kv/hosted/far_range.h).
  bool far = false;
  /// The same on a GPU, chosen by work of the policy's that precedes the plan's on the queue.
  QueryLists lists = {};
  ListTails tails = {};
  /// Or made by this work, of at most list_rows rows at a time, in one place: lists of all rows may
  /// take more memory than there is. Called before attention reads them.
  std::function<void(Range rows, const PagedStore&)> make_lists = {};
  int list_rows = 0;

  void add(const KeyRange& source) { sources[static_cast<size_t>(n++)] = source; }
  /// Lower bounds of the ranges by sequence, null where a range has none.
  std::vector<const int32_t*> bounds() const {
    std::vector<const int32_t*> all;
    for (int i = 0; i < n; ++i) all.push_back(sources[static_cast<size_t>(i)].seq_key_lo);
    return all;
  }
};

/// Facts about a policy, and its requests, as its settings give them.
struct Needs {
  std::string kind = {};              // for messages
  std::string name_of_settings = {};  // for reports: the kind, and settings that distinguish it
  bool reads_all = false;             // full attention: nothing is chosen
  bool can_be_hosted = false;         // its keys may lie in host memory
  bool attends_at_index = false;      // and are attended where the index lies
  int64_t shared_tokens = 0;          // prompts that share as many are indexed once up to there
  bool lists = false;                 // on a GPU, ranges come with lists
  bool reads_trees = true;            // selects for rows of trees too
  bool reads_prompts = false;         // and for those of prompts: no step is a prefill
  bool turns_q = false;               // some sources query at other positions
  int sources = 1;            // most of a plan, a selector's included; beyond one, results merge
  size_t scratch_bytes = 0;   // of a selector, a thread
  int list_keys = 0;          // on a GPU: most keys of a row's and head's list; 0: plans have none
  int list_heads = 1;         // query heads of such a list
  bool list_tails = false;    // and whether means stand for the rest
  int queries = 0;            // newest ones of each sequence that its hooks read
  bool needs_queries = true;  // a sequence without held queries cannot be read
  bool scores = false;        // those that steps of another reading, one of all keys, leave
  bool rounds = false;        // how many drafted tokens verification keeps, by such a reading
  Retention retention = {};   // tokens that rows of extend steps may need: others are evicted
};

/// A policy's device and queue, and data of the run that needs() asks for.
struct Connections {
  Exec exec = {};
  const QueryRing* queries = nullptr;  // the newest queries of sequences
  ScoreStore* scores = nullptr;        // scores that steps of all keys leave
};

/// Keys that one new token of a sequence reads in a layer; for a policy that chooses by content an
/// estimate (usage() counts).
struct KeysRead {
  int total = 0;  // per KV head
  /// The keys that one query head is expected to choose by content, the most where a budget says
  /// how many, and those that it reads for every query; for a GPU, which does not count. None are
  /// chosen: all are read.
  double chosen = 0, fixed = 0;
};

/// What attention reads. Batched: every call serves all sequences of a step. README.md beside this
/// file gives the contract of each hook.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual Needs needs() const = 0;
  /// Bytes beyond the shared store. `prefix` names this policy's buffers.
  virtual void plan(MemoryPlan&, const std::string& /*prefix*/) const {}
  /// Takes what was planned; before all hooks below.
  virtual void set_up(Arena&, const std::string& /*prefix*/, const Connections&) {}
  /// Its part in a KV cache in host memory; null where that cannot be, or is not.
  virtual const HostedIndex* hosted() const { return nullptr; }
  HostedIndex* hosted() { return const_cast<HostedIndex*>(std::as_const(*this).hosted()); }
  /// A prompt ends: K and V of all committed tokens of `slot` are in the store, none was given
  /// back. May come again for the same slot after more tokens were prefilled.
  virtual void on_prompt(int /*slot*/, const PagedStore&) {}
  /// Which keys the rows of an extend step see. Writes nothing that outlives the step.
  virtual void select(int layer, const Step&, const Tensor& q, AttendPlan&) = 0;
  /// A step of another reading, one of all keys, has left scores under all layers, for every policy
  /// that asks for them; its rows may not be committed. On a GPU work that a graph may record,
  /// which finds the numbers of tokens in the step's arrays.
  virtual void on_scores(const Step&) {}
  /// A round has kept `accepted` of `offered` tokens that were drafted one after another for a
  /// slot's text, under whichever reading; on_commit follows.
  virtual void on_round(int /*slot*/, int /*accepted*/, int /*offered*/) {}
  /// Rows of an extend step have become part of these sequences.
  virtual void on_commit(std::span<const int32_t> /*slots*/, const PagedStore&) {}
  /// Sequences come and go: `to` becomes a copy of `from`; `slot` ends; `slot` is cut to n tokens.
  virtual void on_fork(int /*from*/, int /*to*/) {}
  virtual void on_release(int /*slot*/) {}
  virtual void on_truncate(int /*slot*/, int /*n*/, const PagedStore&) {}
  /// The committed tokens of a slot with which what its rows read changes in other ways than with
  /// their positions: an index takes tokens in, or keys are chosen again. More than the slot has.
  /// Rows beyond it in one step would not read what they read one by one.
  virtual int next_change(int /*slot*/) const { return std::numeric_limits<int>::max(); }
  /// Keys that the last of `length` tokens reads.
  virtual KeysRead keys_read(int layer, int length) const = 0;
  /// What steps on a GPU leave of a usage: the errors of lists, where they are known. Waits for the
  /// queue.
  virtual KeyUsage device_usage() const { return {}; }
  /// The policy's selector; null without.
  virtual const KeySelector* selector() const { return nullptr; }
};

/// errors   kind recipe when the settings do not fit the model
std::unique_ptr<Policy> make_policy(const recipe::Cache& cache, const Bounds& bounds);

/// What a policy of these settings asks, but for its scratch; before there is a model.
Needs needs_of(const recipe::Cache& cache);
/// The kinds of policies whose needs are such, for hints: "full, streaming or quest".
std::string kinds_where(const std::function<bool(const Needs&)>& suits);

}  // namespace tandem::kv
