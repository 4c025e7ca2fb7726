#pragma once
#include <memory>
#include <vector>

#include "cli/context.h"
#include "tools/engines/sizing.h"
#include "tools/magicdec/named_draft.h"

namespace tandem::tools {

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
  /// errors   kind input: the target; kind device; kind recipe: a context beyond the target's
  BenchEngines(const recipe::Model& model, const recipe::Run& run, const BenchSizes& sizes,
               bool dry_run);

  /// Admits a draft; nothing is added where it is refused.
  /// errors   kind recipe: keys that read no trees, rows beyond a step's, a context beyond the
  ///          draft's; kind input: its model, a vocabulary that differs
  void add(const NamedDraft& draft, int gamma);
  /// Sizes and plans all engines, for the drafts admitted so far.
  void size();

  Device device() const { return sizer_.device(); }
  const BenchSizes& sizes() const { return sizes_; }
  /// Headers of the target, until it is loaded.
  const decode::ModelFiles& target_files() const { return target_.files; }
  const MemoryPlan& plan() const { return plan_; }
  cli::MemoryLimits limits() const { return sizer_.limits(); }

  /// Loads all engines, once.
  /// errors   kind memory, input, interrupted
  void load(cli::Context& cx);
  decode::Engine& target() { return *target_.engine; }
  /// Rounds of an admitted draft.
  std::unique_ptr<speculate::Rounds> rounds(const NamedDraft& draft, int gamma,
                                            speculate::RoundOptions options);

 private:
  struct Model {
    std::string path;
    decode::ModelFiles files;
    decode::EngineSpec spec = {};
    std::vector<recipe::Cache> caches = {};
    /// The draft that reads by each policy; "" of the target's first.
    std::vector<std::string> readers = {};
    speculate::RoundNeeds needs = {};
    std::unique_ptr<decode::Engine> engine = {};
  };
  struct Admitted {
    std::string draft;
    int gamma = 0;
    bool has_model = false;
  };
  /// The model that drafts; null where none does. Opens it where it is new.
  Model* model_of(const NamedDraft& draft);
  void check(const NamedDraft& draft, int gamma, const recipe::Cache& cache) const;
  MemoryPlan plan_all(int n_streamed);

  const recipe::Run& run_;
  BenchSizes sizes_;
  EngineSizer sizer_;
  Model target_;
  std::vector<std::unique_ptr<Model>> others_;
  std::vector<Admitted> admitted_;
  MemoryPlan plan_;
};

}  // namespace tandem::tools
