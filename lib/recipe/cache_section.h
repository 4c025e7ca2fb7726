#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "recipe/fields.h"
#include "recipe/offload.h"
#include "recipe/rebuild.h"
#include "recipe/refresh.h"

namespace tandem {
class Policy;  // tandem/policy.h
}

namespace tandem::recipe {

enum class CacheKind : uint8_t {
  full,
  streaming,
  topk,
  oracle_sampling,
  quest,
  lsh,
  hybrid,
  snapkv,
  verified,
  retrieval
};
constexpr std::array<std::string_view, 10> enum_names(CacheKind) {
  return {"full", "streaming", "topk",   "oracle_sampling", "quest",
          "lsh",  "hybrid",    "snapkv", "verified",        "retrieval"};
}

/// Beyond any context; sums of a few stay inside an int.
inline constexpr double kMostCacheTokens = 1 << 28;

/// MagicPIG's hash tables.
struct Lsh {
  int bits = 10;
  int tables = 150;
  int min_hits = 2;
  int64_t seed = 0;
  double u_floor = 1e-4;

  template <class V>
  void fields(V& v) {
    v("bits", bits, at_least(1).up_to(16), "bits of a hash code");
    v("tables", tables, at_least(1).up_to(4096), "number of hash tables per KV head");
    v("min_hits", min_hits, at_least(1).up_to(255),
      "tables with a matching hash that a token needs to be read");
    v("seed", seed, at_least(0), "seed of the random projections");
    v("u_floor", u_floor, between(0, 1),
      "constant added to inclusion probabilities before the logarithm");
  }
  void check(Problems& p) const;
};

struct Quest {
  int page = 16;
  Fraction ratio{0.05};

  template <class V>
  void fields(V& v) {
    v("page", page, at_least(1).up_to(64).unit("tokens"), "page size, a divisor of 64");
    v("ratio", ratio, above(0).up_to(1), "KV budget as a share of the context");
  }
  void check(Problems& p) const;
};

/// Oracles: all keys are scored, few are used.
struct TopK {
  Fraction ratio{0.02};

  template <class V>
  void fields(V& v) {
    v("ratio", ratio, above(0).up_to(1),
      "tokens that topk keeps or oracle_sampling draws, as a share of the context");
  }
};

/// Values for the keys that are not read exactly, by estimated weight: means of keys with similar
/// values (clusters), means of neighbours, such means corrected by a sample of the keys, or none.
enum class HybridTail : uint8_t { clusters, means, sampled, none };
constexpr std::array<std::string_view, 4> enum_names(HybridTail) {
  return {"clusters", "means", "sampled", "none"};
}

/// What says how many keys a query head reads.
enum class HybridBudget : uint8_t { share, mass, error };
constexpr std::array<std::string_view, 3> enum_names(HybridBudget) {
  return {"share", "mass", "error"};
}

/// Whose the exact keys are: each query head's own, or those of all heads of a KV head.
enum class HybridGroup : uint8_t { head, shared };
constexpr std::array<std::string_view, 2> enum_names(HybridGroup) { return {"head", "shared"}; }

struct Hybrid {
  static constexpr int kLeastExact = 64;  // keys a head, under any budget

  int bits = 3;
  Fraction refine{0.06};
  Fraction exact{0.025};
  Fraction sample{0.0125};
  HybridTail tail = HybridTail::clusters;
  HybridBudget budget = HybridBudget::share;
  HybridGroup group = HybridGroup::head;
  double mass = 0.9;
  double error = 0.05;

  template <class V>
  void fields(V& v) {
    v("bits", bits, at_least(1).up_to(3), "bits per dimension of a key's code");
    v("refine", refine, between(0, 1),
      "approximate share of tokens, best by their first bits, whose remaining bits are read");
    v("exact", exact, between(0, 1),
      "share of tokens that are read exactly, best estimate first. An upper bound with budget: "
      "mass");
    v("sample", sample, between(0, 1),
      "share of the remaining tokens to sample. Only with tail: sampled. An upper bound with "
      "budget: error");
    v("tail", tail,
      "approximation of the remaining tokens: mean values of similar tokens (clusters) or of "
      "neighbours (means), means corrected by a sample (sampled), or none");
    v("budget", budget,
      "size of the KV budget: share (fixed shares), mass (exact tokens up to an attention mass) or "
      "error (samples up to an error of the softmax denominator)");
    v("group", group,
      "owner of the set of exact tokens: each query head, or all query heads of a KV head "
      "(shared)");
    v("mass", mass, above(0).up_to(1),
      "share of the estimated attention mass that exact tokens cover, only with budget: mass");
    v("error", error, above(0).up_to(1),
      "largest relative error of the softmax denominator in 95 of 100 cases, only with budget: "
      "error");
  }
  void check(Problems& p) const;
};

enum class SnapScale : uint8_t { on, off };
constexpr std::array<std::string_view, 2> enum_names(SnapScale) { return {"on", "off"}; }

/// Keys that the last queries of a prompt chose.
struct SnapKv {
  TokenCount budget{1024};
  int window = 32;
  int pool = 5;
  SnapScale scale = SnapScale::on;
  Refresh refresh;

  template <class V>
  void fields(V& v) {
    v("budget", budget, at_least(1).up_to(kMostCacheTokens).unit("tokens"),
      "prompt tokens that a KV head keeps: sinks, the best-scoring others and the window. A GPU "
      "holds copies of all except the window");
    v("window", window, at_least(1).up_to(1024).unit("tokens"),
      "observation window: tokens at the end of the prompt whose queries select");
    v("pool", pool, at_least(1).up_to(63).unit("tokens"),
      "width of the average pooling over scores, an odd number");
    v("scale", scale,
      "scaling of the selection scores by 1 / sqrt(head_dim), off = as in MagicDec's program");
    v("refresh", refresh,
      "generated tokens after which the latest accepted queries select again, or never");
  }
  void check(Problems& p) const;
};

/// Keys that the verification before attended to most: of drafts that read the target's own cache.
struct Verified {
  static constexpr int kLeastBudget = 256;  // fewer never paid (Vegas, arXiv 2602.07223)
  TokenCount budget{1024};
  int window = 32;

  template <class V>
  void fields(V& v) {
    v("budget", budget, at_least(kLeastBudget).up_to(kMostCacheTokens).unit("tokens"),
      "tokens that a KV head keeps, half of them the most recent. Tokens since the last "
      "verification are read in addition");
    v("window", window, at_least(1).up_to(128).unit("tokens"),
      "tokens at the end of the prompt whose queries select until the first verification");
  }
};

/// What the heads of a KV head make of their scores of a chunk.
enum class ScoreGroup : uint8_t { sum, max };
constexpr std::array<std::string_view, 2> enum_names(ScoreGroup) { return {"sum", "max"}; }

/// Whose queries choose: the last token's, or those of a window of last tokens together.
enum class ChoosingQuery : uint8_t { last, window };
constexpr std::array<std::string_view, 2> enum_names(ChoosingQuery) { return {"last", "window"}; }

/// TriForce's chunks of keys, chosen by their means.
struct Retrieval {
  static constexpr int kWindow = 32;  // tokens whose queries choose together

  TokenCount budget{4096};
  int chunk = 8;
  ScoreGroup group = ScoreGroup::sum;
  ChoosingQuery query = ChoosingQuery::last;
  TokenCount force_recent{0};
  Rebuild rebuild;

  /// Tokens whose queries choose.
  int n_queries() const { return query == ChoosingQuery::last ? 1 : kWindow; }

  template <class V>
  void fields(V& v) {
    v("budget", budget, at_least(2).up_to(kMostCacheTokens).unit("tokens"),
      "tokens that a KV head reads: the selected chunks (always including the first) and the "
      "tokens generated since");
    v("chunk", chunk, at_least(1).up_to(64).unit("tokens"), "chunk size, a divisor of 64");
    v("group", group,
      "combination of a chunk's scores over the query heads of a KV head: sum or max");
    v("query", query,
      "queries that select chunks: last (of the last token) or window (sum over the last 32 "
      "tokens)");
    v("force_recent", force_recent, at_least(0).up_to(kMostCacheTokens).unit("tokens"),
      "most recent tokens that are read regardless of score, part of budget");
    v("rebuild", rebuild,
      "time of a new selection: never (only when the budget is full), N (every N tokens), or "
      "alpha<T (when acceptance falls below T). alpha<T is supported only in spec.draft.cache with "
      "kind self");
  }
  void check(Problems& p) const;
};

/// How a prompt is read.
enum class Prefill : uint8_t { dense, windowed };
constexpr std::array<std::string_view, 2> enum_names(Prefill) { return {"dense", "windowed"}; }

/// Where keys and values lie: with the weights, or in host memory.
enum class CachePlace : uint8_t { device, host };
constexpr std::array<std::string_view, 2> enum_names(CachePlace) { return {"device", "host"}; }

/// Who attends keys in host memory: the CPU, the GPU, which fetches rows over the link, or each a
/// share of them at once.
enum class Attend : uint8_t { automatic, cpu, gpu, both };
constexpr std::array<std::string_view, 4> enum_names(Attend) {
  return {"auto", "cpu", "gpu", "both"};
}

/// Where the index of keys in host memory lies, and so who chooses among them: the GPU in its
/// memory, or the CPU in its own.
enum class IndexPlace : uint8_t { automatic, device, host };
constexpr std::array<std::string_view, 3> enum_names(IndexPlace) {
  return {"auto", "device", "host"};
}

/// A type of numbers; auto: that of model.compute.
enum class NumberType : uint8_t { automatic, bf16, f32, int8, k8v4, k6v4, int4 };
constexpr std::array<std::string_view, 7> enum_names(NumberType) {
  return {"auto", "bf16", "f32", "int8", "k8v4", "k6v4", "int4"};
}

/// In which numbers keys and values lie in host memory: the model's own, or whole numbers of eight
/// bits with a scale a row.
enum class HostDtype : uint8_t { automatic, bf16, int8 };
constexpr std::array<std::string_view, 3> enum_names(HostDtype) { return {"auto", "bf16", "int8"}; }

/// What attention reads.
struct Cache {
  /// MagicPIG's choice; those beyond a model's last layer are left out.
  static std::vector<int> default_dense_layers() { return {0, 16, 32, 48, 64}; }

  CacheKind kind = CacheKind::full;
  CachePlace place = CachePlace::device;
  Attend attend = Attend::automatic;
  IndexPlace index = IndexPlace::automatic;
  double cpu_share = 0;
  Offload resident_layers;
  NumberType dtype = NumberType::automatic;
  std::vector<int> wide_layers = {0};
  HostDtype host_dtype = HostDtype::automatic;
  TokenCount sinks{4};
  TokenCount recent{64};
  bool reposition = false;
  Prefill prefill = Prefill::dense;
  std::vector<int> dense_layers = default_dense_layers();
  Lsh lsh;
  Quest quest;
  TopK topk;
  Hybrid hybrid;
  SnapKv snapkv;
  Verified verified;
  Retrieval retrieval;
  /// A policy of the program that uses the library, in place of `kind`; no recipe has it.
  std::shared_ptr<tandem::Policy> policy;

  bool is_hosted() const { return place == CachePlace::host; }
  bool is_quantized() const { return dtype >= NumberType::int8; }
  /// Of the layers whose keys host memory is for, those that stay on the GPU; auto where nothing
  /// has decided: none.
  int n_resident() const { return resident_layers.automatic() ? 0 : resident_layers.layers; }
  /// Whether keys in host memory are of eight bits.
  bool is_eight_bit() const { return is_hosted() && host_dtype == HostDtype::int8; }
  /// Whether the CPU chooses among keys in host memory.
  bool chooses_on_cpu() const {
    if (!is_hosted()) return false;
    if (index != IndexPlace::automatic) return index == IndexPlace::host;
    return kind == CacheKind::lsh && attend != Attend::gpu;
  }
  /// Who attends keys in host memory, decided: never automatic.
  Attend attends() const {
    if (attend != Attend::automatic) return attend;
    return chooses_on_cpu() || kind == CacheKind::full || is_eight_bit() ? Attend::cpu
                                                                         : Attend::gpu;
  }
  bool cpu_attends() const { return is_hosted() && attends() != Attend::gpu; }
  /// Whether all keys in host memory are read, and the GPU does that: they go to it in every step.
  bool streams_keys() const {
    return is_hosted() && kind == CacheKind::full && attends() == Attend::gpu;
  }

  template <class V>
  void fields(V& v) {
    v("kind", kind, "attention policy: the tokens of the KV cache that attention reads");
    v("place", place, "memory of the KV cache: device, or host (offloaded, for long contexts)");
    v("attend", attend,
      "processor of attention over offloaded KV: cpu, gpu (rows are copied over the link) or both. "
      "auto = by measured speed for hybrid, cpu for lsh and full. Only with place: host");
    v("index", index,
      "place of the index that selects tokens: device, or host (the CPU selects and attends). auto "
      "= device for hybrid, host for lsh. Only with place: host");
    v("cpu_share", cpu_share, between(0, 1),
      "share of the selected tokens that the CPU attends, 0 = by measured speed. Only with attend: "
      "both");
    v("resident_layers", resident_layers,
      "layers whose KV cache stays on the GPU. auto = all that fit. Only with place: host and "
      "kind: full");
    v("dtype", dtype,
      "data type of the KV cache: auto (model.compute), or quantized: int8, k8v4 (8-bit keys, "
      "4-bit values), k6v4, int4. The first and the newest 64 tokens stay in bf16");
    v("wide_layers", wide_layers, at_least(0),
      "layers that k8v4, k6v4 and int4 keep in 8 bits, since their errors cost most");
    v("host_dtype", host_dtype,
      "data type of offloaded KV: bf16 (needs a bf16 model) or int8 (scale per row, half the "
      "bytes, attended by the CPU). auto = the model's. Only with place: host");
    v("sinks", sinks, at_least(0).up_to(kMostCacheTokens).unit("tokens"),
      "attention sinks: first tokens, which are always read");
    v("recent", recent, at_least(1).up_to(kMostCacheTokens).unit("tokens"),
      "most recent tokens, which are always read");
    v("reposition", reposition,
      "positions counted within the cache instead of the text, only with kind: streaming");
    v("prefill", prefill,
      "prefill attention: dense, or windowed (only with kind: streaming), which bounds memory by "
      "the window. Without sinks or with reposition, windowed also bounds the context that "
      "spec.draft.path must be trained for");
    v("dense_layers", dense_layers, at_least(0),
      "layers with full attention under any policy. Not used by full and streaming. Used by "
      "snapkv, verified and retrieval only if set");
    v("lsh", lsh, "hash tables of kind: lsh. The seed also applies to kind: hybrid");
    v("quest", quest, "page summaries of kind: quest");
    v("topk", topk, "exact scoring of all tokens, for kind: topk and oracle_sampling");
    v("hybrid", hybrid,
      "key codes that rank tokens, with value means for the remaining ones, for kind: hybrid");
    v("snapkv", snapkv,
      "selection by the last queries of the prompt, once for the text, for kind: snapkv");
    v("verified", verified,
      "selection by each verification, for kind: verified. Only in spec.draft.cache with "
      "kind self");
    v("retrieval", retrieval, "selection of chunks by their mean keys, for kind: retrieval");
  }
  void check(Problems& p) const;

  /// Tokens between which attention ever sees a distance, if that is less than the text.
  std::optional<int64_t> reach() const {
    if (prefill != Prefill::windowed || (sinks > 0 && !reposition)) return {};
    return sinks.value + recent.value;
  }
};

}  // namespace tandem::recipe
