#pragma once
#include <memory>
#include <vector>

#include "bench/speculation/ways.h"
#include "decode/fit/rank_plan.h"
#include "decode/fit/sizing.h"

namespace tandem::bench {

/// The batch that a benchmark decodes.
struct BenchSizes {
  int batch = 1;
  int context = 0;     // tokens of a prompt
  int new_tokens = 0;  // of a sequence
};

/// A target and all drafts that are compared on it. Drafts of kind self are further policies of the
/// target's cache; each other model has one engine, with a policy for each draft that it is.
class BenchEngines {
 public:
  /// cache    how the target reads
  /// errors   kind input: the target; kind device; kind recipe: a context beyond the target's, a
  ///          cache that cannot read trees
  BenchEngines(const recipe::Model& model, const recipe::Cache& cache, const recipe::Run& run,
               const BenchSizes& sizes, const decode::RunContext& cx);

  /// Sets other sizes, before anything is admitted.
  /// errors   kind recipe: a context beyond the target's
  void resize(const BenchSizes& sizes);
  /// Admits a way to draft; nothing is added where it is refused.
  /// errors   kind recipe: keys that read no trees, rows beyond a step's, a context beyond the
  ///          draft's; kind input: its model, a vocabulary that differs
  void add(const Way& way);
  /// Admits a draft whose forwards run outside of rounds, `rows` of each sequence; it need not read
  /// trees.
  /// errors   as add
  void add_reader(const speculate::NamedDraft& draft, int rows);
  /// What the run holds in addition to the engines.
  void add_buffer(std::string name, size_t bytes) { buffers_.emplace_back(std::move(name), bytes); }
  /// Takes room for timing forwards of an admitted draft over trees of up to `nodes` nodes.
  /// name     of its buffers
  void add_timing(const std::string& name, const speculate::NamedDraft& draft, int nodes);
  /// Sizes and plans all engines, for the drafts admitted so far.
  void size();

  Device device() const { return sizer_.device(); }
  int n_ranks() const { return sizer_.n_ranks(); }
  /// Whether layers of the target stay in host memory.
  bool streams() const { return target_.spec.savings.n_streamed > 0; }
  const BenchSizes& sizes() const { return sizes_; }
  /// Headers of the target, until it is loaded.
  const decode::ModelFiles& target_files() const { return target_.files; }
  const MemoryPlan& plan() const { return plan_; }
  decode::MemoryLimits limits() const { return sizer_.limits(); }
  /// Of the target; until it is loaded.
  decode::RankPlan rank_plan() const;

  /// Loads all engines, once.
  /// errors   kind memory, input, interrupted
  void load(const decode::RunContext& run);
  decode::Engine& target() { return *target_.engine; }
  /// The model of an admitted draft of kind self or model, as it reads.
  speculate::Reader drafter(const speculate::NamedDraft& draft);
  /// Rounds of an admitted way to draft.
  /// within   of a nested way
  std::unique_ptr<speculate::Rounds> rounds(const Way& way, speculate::WithinOptions within,
                                            speculate::RoundOptions options);
  /// Length of sequences that forwards are timed at: halfway through the new tokens.
  int timed_context() const { return sizes_.context + sizes_.new_tokens / 2; }

 private:
  struct Model {
    std::string path;
    recipe::WeightType weights = recipe::WeightType::automatic;
    decode::ModelFiles files;
    decode::EngineSpec spec = {};
    std::vector<recipe::Cache> caches = {};
    /// The draft that reads by each policy; "" of the target's first.
    std::vector<std::string> readers = {};
    std::vector<recipe::Sparse> sparse = {};
    std::vector<int> channels = {0};  // of each reader
    speculate::RoundNeeds needs = {};
    std::unique_ptr<decode::Engine> engine = {};
  };
  /// Rounds, and the memory that they hold.
  struct Admitted {
    std::string name;
    speculate::TreeRoom room;
    bool has_model = false;
    std::optional<speculate::NestedShape> nested = {};
  };
  /// The policy of a model's cache for a draft, once.
  static void register_reader(Model& model, const speculate::NamedDraft& draft,
                              const recipe::Cache& cache);
  /// The model that drafts; null where none does. Opens it where it is new.
  Model* model_of(const speculate::NamedDraft& draft);
  void check(const Way& way, const recipe::Cache& cache) const;
  void add_nested(const Way& way);
  /// Room for such rounds in both engines.
  void admit(const std::string& name, Model* model, const speculate::TreeRoom& room);
  MemoryPlan plan_all(const decode::Savings& savings);

  recipe::Model of_target_;
  BenchSizes sizes_;
  decode::EngineSizer sizer_;
  Model target_;
  std::vector<std::unique_ptr<Model>> others_;
  std::vector<Admitted> admitted_;
  std::vector<std::pair<std::string, size_t>> buffers_;
  bool is_timed_ = false;
  MemoryPlan plan_;
};

}  // namespace tandem::bench
