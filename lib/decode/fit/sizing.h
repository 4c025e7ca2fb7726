#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "decode/decoder.h"
#include "decode/fit/placement.h"
#include "decode/prompts.h"
#include "decode/run_context.h"
#include "recipe/sections.h"

// How every tool sizes its engines: the sequences that they hold, then the engines that hold them.
namespace tandem::decode {

/// The sequences that a run holds at once.
struct SequenceRoom {
  int batch = 1;
  bool prefix = false;  // one sequence more, which holds what all begin with
  int64_t longest = 0;  // tokens of one sequence
  int64_t total = 0;    // of all, what they begin with counted once
  int64_t to_read = 0;  // of prompts read together: a prefill needs no more rows
  int prompts = 1;      // of the run
  size_t texts = 0;     // bytes of the host's memory for requests, texts so far and results

  int sequences() const { return batch + (prefix ? 1 : 0); }
};

/// The same of an engine that reads by this cache: one that reads prompts under its window holds
/// that of each sequence, and the rows of one prefill.
/// prefill  rows of one, at most
SequenceRoom room_under(SequenceRoom room, const recipe::Cache& cache, int64_t prefill);

/// What bounds them.
struct SequenceBounds {
  int64_t context = 0;        // tokens that a sequence may have
  int64_t model_context = 0;  // tokens that the model was made for; 0: a run of several models
  int64_t saved = 0;          // tokens of a state that all sequences continue
  int max_tokens = 0;         // new tokens of a sequence, at most
  int least_new = 0;          // new tokens that must fit after every prompt
  int batch = 1;              // sequences at once, at most

  PromptRoom prompt_room() const { return {context, model_context, saved, least_new}; }
};

/// What plans call SequenceRoom::texts.
inline constexpr const char* kTextsItem = "texts/requests and results";

/// Room for these prompts; without any, for sequences of bounds.context tokens.
/// errors   kind input: a prompt beyond the context
SequenceRoom room_for(const PromptSet& prompts, const SequenceBounds& bounds);

/// Sequences that run together, of `n` asked for.
int batch_size(const recipe::Run& run, size_t n);

/// Adds what an engine takes in addition to others of its run; names of its buffers after `prefix`
/// and a blank. The program and the driver's share are there once for all.
void add_engine(MemoryPlan& all, const MemoryPlan& own, const std::string& prefix);

/// Refuses a model.offload that a run cannot follow.
/// errors   kind recipe: layers in host memory asked for on the CPU, or more than there are
void check_offload(const recipe::Offload& offload, const model::ModelConfig& config, Device device);

/// What a run does without so that it fits on its GPU: nothing where that has the room; else most
/// of a ring for keys that come from host memory, then the embedding there, then prompts in one
/// pass, and last, if model.offload is auto, as few layers as possible; with set_channels, of as
/// few layers the channels beyond them, then those, then attention. All of it where the run never
/// fits. Where cache.resident_layers is auto, the keys of as many layers stay there as there
/// is room for then; that ring gets the rest.
/// key_layers  that this may be, or 0
/// set_channels  of each layer, that drafts read; 0: layers are not divided
/// plan_of  the whole run with these savings
/// errors   as check_offload
Savings savings_of(const recipe::Offload& offload, const model::ModelConfig& config,
                   const MemoryLimits& limits,
                   const std::function<MemoryPlan(const Savings&)>& plan_of, int key_layers = 0,
                   int set_channels = 0);

/// Shows the warnings and notes of opening a model, each once.
void report_opening(const RunContext& run, const ModelFiles& files);

/// How the ranks of a run add up numbers on this device; null where there is one, and for plans.
/// errors   kind device
std::shared_ptr<Comm> comm_of(const RunContext& run, Device device);

/// Sections `model` and `run` of a recipe: where its engines run, and how large they are.
class EngineSizer {
 public:
  /// caches   how the engines read; they run on a GPU only if it can read in all these ways
  /// cx       of the run; outlives this
  /// errors   kind device
  EngineSizer(const recipe::Model& model, const recipe::Run& run, std::vector<recipe::Cache> caches,
              const RunContext& cx);

  Device device() const { return place_.device; }
  const Placement& place() const { return place_; }
  /// Of weights and activations.
  DType compute() const;
  /// The ranks of the run; null where there is one, and for plans.
  const std::shared_ptr<Comm>& comm() const { return comm_; }
  const std::shared_ptr<ranks::Group>& group() const { return cx_.group(); }
  int n_ranks() const { return cx_.place().size; }
  /// As of now; of several ranks those of the one with the least.
  MemoryLimits limits() const;

  /// Headers of model.path, and of its adapter.
  /// errors   kind input
  ModelFiles open_model() const { return open_model(model_); }
  /// Opens that model with other weights. Those that are auto are as model.weights quantizes them,
  /// else as in the file.
  ModelFiles open_model(const recipe::Weights& weights) const;
  /// The same of a model that proposes tokens.
  ModelFiles open_draft(const recipe::Model& draft) const;

  /// An engine for these sequences.
  /// extra    what rounds need beyond them
  /// cache    by which it reads, if by one alone
  EngineSpec spec(const SequenceRoom& room, const RoundNeeds& extra = {},
                  const recipe::Cache& cache = {}) const;
  /// An engine of sizes that something else knows, where this run takes place.
  EngineSpec placed(EngineSpec sizes) const;

  /// Makes a run fit by what savings_of says.
  /// plan_of  the whole run with savings; called last with those that are chosen
  /// set_channels  as savings_of
  /// result   that plan
  /// errors   as check_offload
  MemoryPlan save_memory(const model::ModelConfig& config,
                         const std::function<MemoryPlan(const Savings&)>& plan_of,
                         int set_channels = 0) const;

  bool offloads() const { return model_.offload.any(); }
  /// The most layers that model.offload lets a run keep in host memory.
  int most_streamed(const model::ModelConfig& config) const {
    return model_.offload.automatic() ? config.n_layers : model_.offload.layers;
  }

 private:
  ModelFiles open(const recipe::Model& model) const;
  /// Decides in which form weights that a source stores as codes lie in memory.
  void place_codes(ModelFiles& files, const recipe::Weights& weights) const;

  const recipe::Model& model_;
  const recipe::Run& run_;
  const RunContext& cx_;
  std::vector<recipe::Cache> caches_;
  Placement place_;
  std::shared_ptr<Comm> comm_;  // null where there is one rank, and for plans
};

}  // namespace tandem::decode
