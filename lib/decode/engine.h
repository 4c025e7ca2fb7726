#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/gpu_cards.h"
#include "decode/model_files.h"
#include "decode/sampler.h"
#include "ffn/channels.h"
#include "kv/cache.h"
#include "model/adapters/adapter_switch.h"
#include "model/adapters/served_adapters.h"
#include "model/forward/transformer.h"
#include "recipe/sections.h"
#include "tensor/arena.h"

namespace tandem::decode {

/// What a run on a GPU does without, to need less memory there.
struct Savings {
  /// The embedding lies in pinned host memory, unless the head has its rows: a token's row comes
  /// over the link.
  bool host_embedding = false;
  /// In which the longest prompt goes through the layers, where prompts are read layer by layer: of
  /// the residual stream one pass is held. Each brings the keys of those before it.
  int prompt_passes = 1;
  /// Layers whose weights stay in pinned host memory and come over the link in every forward; where
  /// channels are divided, the rest of as many, then their sets, then their attention.
  int n_streamed = 0;
  /// Channels of each layer that are a separate set, which drafts read; 0: not divided.
  int set_channels = 0;
  /// Layers whose keys stay on the GPU, where cache.resident_layers is auto.
  int resident_layers = 0;
  /// Eighths of a layer, beyond one, that keys have room for on their way from host memory: copies
  /// run as far ahead.
  int ring_eighths = kWholeRing;
  static constexpr int kWholeRing = kv::HostedKeys::kWholeRing;

  /// `embedding in host memory, prompts in 3 passes, 4 of 32 layers in host memory`; empty where
  /// nothing is saved.
  std::string text(int n_layers) const;
};

/// What becomes of adapters that have names (ModelFiles::adapters).
enum class AdapterUse : uint8_t {
  none,     // there are none
  mix,      // they stay apart from the weights, and each sequence has its own
  switched  // one at a time is in the weights
};

/// What a run will need; everything else follows from it and the model.
struct EngineSpec {
  DType compute = DType::bf16;
  int prefill_chunk = 2048;  // rows of one prefill forward
  /// Whether a prompt goes through the model layer by layer, or chunk by chunk.
  recipe::PrefillOrder prefill_order = recipe::PrefillOrder::chunks;
  int max_seqs = 1;          // sequences alive at once
  int max_prompts = 0;       // of them, all but forks that add little (kv/cache.h); 0 = all
  int max_drafted = 0;       // of them, those that caches beyond the first read; 0 = all
  int max_extended = 0;      // of them, those that are extended or decoded; 0 = all (kv/cache.h)
  int max_tokens = 0;        // of one sequence
  int64_t longest = 0;       // prompt and answer of the longest sequence, by which longrope takes
                             // its factors for all; 0: max_tokens
  int64_t total_tokens = 0;  // over all sequences, shared prefixes counted once
  int max_appended = 0;      // of one sequence after its prompt; 0 = any number (kv/cache.h)
  int max_extend_rows = 0;   // rows of one extend call, all sequences; 0 = as many as a prefill's
  int max_draft_rows = 0;    // rows of one sequence in a step that verifies or drafts, and those
                             // that one ahead of it may add
  int max_tree_rows = 0;     // rows of a step with trees, all sequences, that is to be fast
  int max_logit_rows = 1;    // rows whose logits are alive at once, at least max_seqs
  int row_counts = 0;        // different numbers of rows that forwards have, beyond the first few
  Device device = {};
  std::optional<GpuCard> plan_for = {};  // of a plan alone: its GPU, where that is not `device`
  Savings savings = {};
  std::vector<recipe::Cache> caches;  // the policies that share the store
  /// FFN policies: reading n of channels (kv::Reading) is the n-th, from 1 on.
  std::vector<recipe::Sparse> sparse = {};
  /// By cache, the channels of steps of its sequences that name no reading; those beyond the end
  /// read all.
  std::vector<int> channels = {};
  AdapterUse adapters = AdapterUse::none;
  /// Of a plan, how many ranks have a part of the model, and of a run, these (ModelFiles::shard).
  int n_ranks = 1;
  std::shared_ptr<Comm> comm = nullptr;
  Interrupted interrupted = {};  // polled while weights load, and within every forward
};

/// The GPU that the engine runs on or is planned for, as kernels see it; of no meaning on the CPU.
/// errors   kind device: it does not answer
cuda::Gpu gpu_of(const EngineSpec& spec);

/// New tokens of one sequence.
struct SeqTokens {
  int slot = 0;
  std::span<const int32_t> tokens;
  bool ends_prompt = true;
};

/// Model, cache and memory of one run, all from one plan. Every call that runs the model ends with
/// an error of kind interrupted once spec.interrupted says so; nothing of the forward in flight is
/// committed, and the engine stays usable.
class Engine {
 public:
  /// What plans call the program that runs.
  static constexpr const char* kProgramItem = "process/program and tokenizer";
  static constexpr const char* kNcclItem = "process/NCCL";

  /// Every byte of the run. Items named "process/..." are what the program itself holds already.
  static MemoryPlan plan(const ModelFiles& files, const EngineSpec& spec);

  /// Loads the weights, reporting the fraction loaded.
  /// queue    on a GPU, of another engine whose work and this one's go in one order; null: an own one
  /// errors   kind memory, input, interrupted
  Engine(ModelFiles files, const EngineSpec& spec,
         const std::function<void(double share)>& on_load = {},
         std::shared_ptr<cuda::Queue> queue = nullptr);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Called between forwards with the tokens done so far; returning false stops the work.
  using Progress = std::function<bool(int64_t done)>;
  /// Called when the logits of the last rows of some sequences are ready: [which, vocab] on the
  /// engine's device, valid until the next forward.
  using OnLogits = std::function<void(std::span<const size_t> which, const Tensor& logits)>;

  /// Prefills sequences in chunks, several short ones to a forward, densely and exactly; all layers
  /// of a chunk and then the next, or, as the spec says, all chunks of a layer.
  /// errors   kind interrupted when `progress` returns false
  void prefill(std::span<const SeqTokens> sequences, const OnLogits& on_logits,
               const Progress& progress = {});
  /// One forward under the sequences' policy; all rows are committed.
  /// shapes   result: rows of the last token of each sequence, [sequences, vocab] on the host, until the next call
  Tensor extend(std::span<const SeqTokens> sequences);
  /// Puts a decode step in flight: the token last drawn for each sequence goes through the model,
  /// and the sampler draws the next.
  void decode(std::span<const DrawSeq> sequences);
  Sampler& sampler() { return sampler_; }
  /// One forward whose every row's logits are wanted, in pieces of at most max_logit_rows:
  /// `visit(first_row, logits [n, vocab])`. Several where rows of an extend step would not read
  /// what they read alone.
  void forward_all(kv::Phase phase, std::span<const SeqTokens> sequences,
                   const std::function<void(int first_row, const Tensor& logits)>& visit);

  /// Room for logits that are alive at once, [max_logit_rows, vocab] f32 on the engine's device:
  /// who runs the model says which rows of it hold what.
  Tensor logit_rows() const { return logits_; }
  /// Logits of some rows of the last forward in the first rows of logit_rows().
  /// shapes   rows [n]; result [n, vocab], valid until other logits are written there
  Tensor logits(std::span<const int32_t> rows);
  /// Sequences that a step of n is laid out for, with `rows_each` rows and logits of all of them:
  /// n on the CPU, more on a GPU (kv::places_for).
  int places(int n, int rows_each) const;
  /// Whether a graph may hold a forward: not where weights or keys stream, whose copies go on
  /// meanwhile.
  bool is_recordable(const kv::Reading& reading = {}) const {
    return spec_.savings.n_streamed == 0 &&
           !(cache_.residence().facts().streams_keys && reading.keys == 0);
  }
  /// Sequences that a step has room for, with that many rows and rows of logits each.
  int room_for_places(int rows_each, int logit_rows_each) const;
  /// Chooses the products of a forward and of its logits before either runs (model::Transformer).
  void choose_products(int64_t rows, int64_t logit_rows);
  /// A tensor's values on the host, valid until the next call; waits for a GPU's work so far.
  Tensor on_host(const Tensor& t);

  /// Bytes of weights that every step reads; kv::Cache::usage counts keys and values.
  size_t weight_bytes() const { return model_.weights().bytes(); }
  /// The same of steps that read listed channels, as many as a list is expected to have.
  double weight_bytes(const kv::Reading& reading) const;
  /// Of them, those that every forward brings from host memory.
  size_t streamed_bytes(const kv::Reading& reading = {}) const;
  /// A sequence goes on with an adapter of files().adapters, or negative, with none. Where adapters
  /// are switched it must be the one in the weights.
  void use_adapter(int slot, int adapter);
  /// Where adapters are switched: puts another one into the weights, or negative, none. All
  /// sequences have ended.
  /// errors   as model::AdapterSwitch::to
  void switch_adapter(int adapter);
  int switched_adapter() const { return switch_ ? switch_->current() : -1; }
  /// Bytes of an adapter that a step reads for its rows, or that a switch to it and back writes.
  size_t adapter_bytes(int adapter) const;

  /// Waits until no copies of weights or keys run ahead.
  /// errors   kind device
  void settle() const {
    cache_.residence().settle();
    if (model_.weights().stream) model_.weights().stream->wait();
  }

  /// Where it computes.
  const Exec& exec() const { return exec_; }
  /// Null on the CPU.
  const std::shared_ptr<cuda::Queue>& queue() const { return queue_; }

  const model::ModelConfig& config() const { return files_.config; }
  const text::Tokenizer* tokenizer() const { return files_.tokenizer.get(); }
  const ModelFiles& files() const { return files_; }
  /// The factors of longrope that all positions have, "short" or "long"; empty without longrope.
  std::string_view rope_factors() const;
  const EngineSpec& spec() const { return spec_; }
  const MemoryPlan& memory_plan() const { return arena_.plan(); }
  kv::Cache& cache() { return cache_; }
  /// Its FFN policies; null without.
  const ffn::Channels* channels() const { return channels_.get(); }
  const kv::Cache& cache() const { return cache_; }
  model::Transformer& model() { return model_; }
  const model::Transformer& model() const { return model_; }

 private:
  /// One forward, committed; the caller may ask for the logits of `logit_rows` of it afterwards.
  kv::Step run(kv::Phase phase, std::span<const SeqTokens> sequences, int64_t logit_rows);
  /// Lays a decode step out, as one or in micro-batches.
  std::vector<kv::Step> begin_decode(std::span<const DrawSeq> sequences, int n, bool recorded);
  /// Rows of one forward of a prefill, and what of the sequences ends in it.
  struct Chunk {
    std::vector<SeqTokens> parts;
    std::vector<size_t> finished;    // sequences of the call
    std::vector<int32_t> last_rows;  // theirs
    size_t rows = 0;
  };
  /// Where a prefill stands among its sequences.
  struct Cursor {
    size_t next = 0, offset = 0;
  };
  /// Rows, from there on, of the prompts that next go through the layers together: the rest of the
  /// current sequence, or what there is room for, and whole ones after it.
  size_t rows_of_pass(std::span<const SeqTokens> sequences, const Cursor& at) const;
  /// The next chunk: the rest of the current sequence, then whole short ones, then a first part.
  Chunk take_chunk(std::span<const SeqTokens> sequences, Cursor& at, size_t max_rows) const;
  /// Chunks by layers. on_layer: layers done.
  void run_by_layers(std::span<const Chunk> chunks, const OnLogits& on_logits,
                     const std::function<void(int layers)>& on_layer);
  /// forward_all where sequences have more rows than an extend step takes.
  void forward_parts(std::span<const SeqTokens> sequences,
                     const std::function<void(int first_row, const Tensor& logits)>& visit);
  /// Channels that rows of a slot read where no reading is named, and how many of the rows may go
  /// through the model together so that each reads what it would alone.
  int channels_of(int slot) const;
  int rows_together(int slot) const;
  /// Logits of some rows of the last forward in the rows of logit_rows() from `first` on.
  Tensor logits(int64_t first, std::span<const int32_t> rows);

  EngineSpec spec_;
  ModelFiles files_;
  std::shared_ptr<cuda::Queue> queue_;  // on a GPU; goes last
  Exec exec_;
  Arena arena_;
  model::Transformer model_;
  kv::Cache cache_;
  std::unique_ptr<ffn::Channels> channels_;        // null without FFN policies
  std::unique_ptr<model::ServedAdapters> served_;  // null unless adapters are mixed
  std::unique_ptr<model::AdapterSwitch> switch_;   // null unless they are switched
  Sampler sampler_;
  Tensor logits_;                // [max_logit_rows, vocab]
  int32_t* rows_ = nullptr;      // [max_logit_rows] on a GPU: whose logits are asked for
  std::vector<int32_t> tokens_;  // of the step in flight
  // By reading and number of sequences, for the sampler's settings at the time but for the seed.
  std::map<std::tuple<int, int, int>, std::unique_ptr<cuda::Graph>> decode_graphs_;
  SamplerSpec graph_spec_;
  std::vector<float> host_;  // copy of a GPU's tensor
};

}  // namespace tandem::decode
