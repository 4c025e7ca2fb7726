#pragma once
#include <optional>
#include <string>

#include "kv/cache.h"
#include "kv/hosted/hosted_residence.h"
#include "kv/quantized/quantized_residence.h"

// What a cache of some spec consists of: the specs of its parts, for its plan and its making.
namespace tandem::kv::parts {

inline constexpr const char* kTables = "workspace/page tables";

/// Where policies choose keys.
Device list_device(const Cache::Spec& s);
/// Empty unless a policy reads queries.
QueryRing::Spec ring_spec(const Cache::Spec& s);
bool wants_scores(const Cache::Spec& s);
ScoreStore::Spec score_spec(const Cache::Spec& s);
bool turns_q(const Cache::Spec& s);
/// Rows whose partial results are alive at once. A prefill of text that a policy has cut runs as an
/// extend step, and only repositioned sinks then have several sources.
size_t partial_rows(const Cache::Spec& s);
/// Of the i-th policy of a run.
Bounds bounds_of(const Cache::Spec& s, size_t i);
/// The layers in host memory; none: there are none.
/// errors   kind recipe: policies of the run do not support them
std::optional<HostedSpec> hosted_spec(const Cache::Spec& s);
/// The layers in codes; none: there are none.
/// errors   kind recipe: the model or the policies of the run do not support them
std::optional<QuantizedSpec> quantized_spec(const Cache::Spec& s);
/// Page groups, without the keys in host memory or in codes.
std::vector<PageGroups::Spec> group_specs(const Cache::Spec& s);
/// Whether ranges of a run come with lists.
bool has_lists(const Cache::Spec& s);
/// scratch_bytes  of one thread's lists
ListAttention::Spec list_spec(const Cache::Spec& s, size_t scratch_bytes);
/// Names the buffers of the i-th policy of a run.
std::string prefix_of(const Cache::Spec& s, size_t i);
AttentionBounds attention_bounds(const Cache::Spec& s);
DeviceStep::Bounds step_bounds(const Cache::Spec& s);
/// Whether the CPU attends rows of a GPU, and whether it chooses their keys, too.
bool serves_gpu(const Cache::Spec& s);
bool chooses_for_gpu(const Cache::Spec& s);
/// Of the i-th of micro-batches.
HostAttention::Spec served_spec(const Cache::Spec& s, int i);

/// What the policies of a run need together, and who serves them.
struct RunNeeds {
  size_t parts = 1, scratch_bytes = 0;  // parts: partial results of a plan
  int list_keys = 0, list_heads = 1;    // of lists that a GPU chooses

  /// A single range goes straight to the output.
  bool partials() const { return parts > 1 || scratch_bytes > 0; }

  void add(const Needs& n) {
    const int of_lists = n.list_keys > 0 ? attend_lists_parts(n.list_keys, n.list_tails) : 0;
    parts = std::max(parts, static_cast<size_t>(n.sources + of_lists));
    scratch_bytes = std::max(scratch_bytes, n.scratch_bytes);
    list_keys = std::max(list_keys, n.list_keys);
    list_heads = std::max(list_heads, n.list_heads);
  }
};

RunNeeds needs_of_run(const Cache::Spec& s);

}  // namespace tandem::kv::parts
