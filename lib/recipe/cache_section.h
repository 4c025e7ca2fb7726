#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "recipe/fields.h"
#include "recipe/offload.h"
#include "recipe/rebuild.h"
#include "recipe/refresh.h"

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
    v("bits", bits, at_least(1).up_to(16), "sign bits of a table's code");
    v("tables", tables, at_least(1).up_to(4096), "hash tables of a KV head");
    v("min_hits", min_hits, at_least(1).up_to(255), "tables that must agree for a key to be read");
    v("seed", seed, at_least(0), "seed of the projections");
    v("u_floor", u_floor, between(0, 1), "added to inclusion probabilities before the logarithm");
  }
  void check(Problems& p) const;
};

struct Quest {
  int page = 16;
  Fraction ratio{0.05};

  template <class V>
  void fields(V& v) {
    v("page", page, at_least(1).up_to(64).unit("tokens"), "tokens of a page, a divisor of 64");
    v("ratio", ratio, above(0).up_to(1), "share of the text whose pages are read");
  }
  void check(Problems& p) const;
};

/// Oracles: all keys are scored, few are used.
struct TopK {
  Fraction ratio{0.02};

  template <class V>
  void fields(V& v) {
    v("ratio", ratio, above(0).up_to(1),
      "keys kept (topk) or drawn (oracle_sampling), as a share of the text");
  }
};

/// What stands for the keys that are not read exactly: means of values by estimated weight, the
/// same corrected by a sample of the keys, or nothing.
enum class HybridTail : uint8_t { means, sampled, none };
constexpr std::array<std::string_view, 3> enum_names(HybridTail) {
  return {"means", "sampled", "none"};
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
  HybridTail tail = HybridTail::means;
  HybridBudget budget = HybridBudget::share;
  HybridGroup group = HybridGroup::head;
  double mass = 0.9;
  double error = 0.05;

  template <class V>
  void fields(V& v) {
    v("bits", bits, at_least(1).up_to(3), "bits a dimension of a key's code");
    v("refine", refine, between(0, 1),
      "about the share of keys whose other bits are read, the best by the first bits");
    v("exact", exact, between(0, 1),
      "share of keys that are read exactly, best estimate first: all of it, or with budget mass at "
      "most");
    v("sample", sample, between(0, 1),
      "tail sampled: share of keys sampled from the rest; with budget error at most");
    v("tail", tail,
      "what stands for the rest: means of values by estimated weight, those corrected by a sample, "
      "nothing");
    v("budget", budget,
      "keys read: fixed shares; exact ones up to a share of the estimated mass; samples up to an "
      "error of the weights' sum");
    v("group", group,
      "exact keys: a set for each query head, or one set shared by the heads of a KV head");
    v("mass", mass, above(0).up_to(1), "budget mass: share of the estimated attention");
    v("error", error, above(0).up_to(1),
      "budget error: largest relative error of the sum of weights, in 95 of 100 cases");
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
      "tokens of a prompt that a KV head keeps: sinks, the best of the others, the window; a GPU "
      "holds copies of all but the window");
    v("window", window, at_least(1).up_to(1024).unit("tokens"),
      "last tokens of a prompt, whose queries choose");
    v("pool", pool, at_least(1).up_to(63).unit("tokens"),
      "odd number of neighbouring tokens whose scores are averaged");
    v("scale", scale, "scores of the choice divided by sqrt(head_dim); off = MagicDec's program");
    v("refresh", refresh,
      "generated tokens after which the last accepted queries choose again, or never");
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
      "tokens that a KV head keeps, half of them the last ones; those since the verification are "
      "read in addition");
    v("window", window, at_least(1).up_to(128).unit("tokens"),
      "last tokens of a prompt, whose queries choose until something was verified");
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
      "tokens that a KV head reads: the chosen chunks, the first among them, and tokens generated "
      "since");
    v("chunk", chunk, at_least(1).up_to(64).unit("tokens"),
      "tokens that are chosen as one, a divisor of 64");
    v("group", group,
      "score of a chunk, from those of a KV head's query heads: their sum, or the largest");
    v("query", query, "queries that choose: the last token's, or the sum of the last 32");
    v("force_recent", force_recent, at_least(0).up_to(kMostCacheTokens).unit("tokens"),
      "of the budget: last tokens that are read regardless of their scores");
    v("rebuild", rebuild,
      "when the last query chooses again: never, before the budget is used up; after as many "
      "tokens; or, of draft.cache with spec.draft self, alpha<T: when fewer drafted tokens are "
      "accepted");
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

  bool is_hosted() const { return place == CachePlace::host; }
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
    v("kind", kind, "which keys attention reads");
    v("place", place, "where a GPU's keys and values lie: host for those of long texts");
    v("attend", attend,
      "place host: who attends keys there. cpu; gpu, fetching them over the link; both, each a "
      "share; auto: by measured rates for kind hybrid, cpu for lsh and full");
    v("index", index,
      "place host: where the index lies that chooses keys: device, in GPU memory; host, where the "
      "CPU chooses and attends; auto: device for kind hybrid, host for lsh");
    v("cpu_share", cpu_share, between(0, 1),
      "attend both: share of a list's keys that the CPU attends; 0 = by measured rates");
    v("resident_layers", resident_layers,
      "place host, kind full: layers whose keys stay on the GPU all the same; auto: as many as "
      "fit");
    v("host_dtype", host_dtype,
      "place host: numbers of keys and values there. bf16, where the model computes in it; int8, "
      "with a scale a row: half the bytes, which the CPU attends; auto: the model's own");
    v("sinks", sinks, at_least(0).up_to(kMostCacheTokens).unit("tokens"),
      "first tokens that are always read");
    v("recent", recent, at_least(1).up_to(kMostCacheTokens).unit("tokens"),
      "last tokens that are always read");
    v("reposition", reposition, "streaming: count positions within the cache, not in the text");
    v("prefill", prefill,
      "streaming: how a prompt is read. dense: every key; windowed: as the text after it, so that "
      "the window bounds memory and, without sinks or with reposition, the lengths that draft.path "
      "must be trained for");
    v("dense_layers", dense_layers, at_least(0),
      "layers that read every key under any kind (not for full and streaming; snapkv, verified "
      "and retrieval only if set)");
    v("lsh", lsh, "kind lsh: hash tables; its seed is also that of kind hybrid");
    v("quest", quest, "kind quest: page summaries");
    v("topk", topk, "kinds topk and oracle_sampling: exact scores of all keys");
    v("hybrid", hybrid, "kind hybrid: codes rank keys, means of values stand for the rest");
    v("snapkv", snapkv, "kind snapkv: the last queries of the prompt choose, once for all rows");
    v("verified", verified,
      "kind verified, of draft.cache with spec.draft self: each verification chooses");
    v("retrieval", retrieval, "kind retrieval: the last query chooses chunks by their mean keys");
  }
  void check(Problems& p) const;

  /// Tokens between which attention ever sees a distance, if that is less than the text.
  std::optional<int64_t> reach() const {
    if (prefill != Prefill::windowed || (sinks > 0 && !reposition)) return {};
    return sinks.value + recent.value;
  }
};

}  // namespace tandem::recipe
