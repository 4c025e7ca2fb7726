#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "ffn/channels.h"
#include "kv/cache.h"
#include "model/forward/side_products.h"
#include "model/spec/config.h"
#include "model/weights/channel_sets.h"
#include "model/weights/weights.h"
#include "ops/rope_table.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace tandem::model {

/// The shape of the cache of a model whose activations have `dtype`.
kv::Geometry geometry_of(const ModelConfig& config, DType dtype);

/// Buffers that a layer writes for a forward's rows, in the compute type unless said.
/// Inference has one set for all layers; a null place is that set's.
struct LayerActivations {
  void* qkv = nullptr;       // [rows, (n_heads + 2 n_kv_heads) head_dim] before heads are turned
  void* q = nullptr;         // [rows, n_heads, head_dim] turned
  void* attended = nullptr;  // [rows, n_heads, head_dim]
  void* gate_up = nullptr;   // [rows, 2 ffn_dim]
  void* ffn = nullptr;       // [rows, ffn_dim]
  // These serve only a backward pass; null: not kept.
  void* residual_in = nullptr;   // [rows, dim] residual stream before attention
  void* residual_mid = nullptr;  // [rows, dim] and before the FFN
  float* lse = nullptr;          // [rows, n_heads] of attention, natural log
  void* normed_in = nullptr;     // [rows, dim] what the norms give of these two
  void* normed_mid = nullptr;    // [rows, dim]
  void* o_out = nullptr;         // [rows, dim] attention's output, and the FFN's, before the norms
  void* down_out = nullptr;      // [rows, dim] that follow them
};

/// A decoder of the layers that a ModelConfig lists. It does not know the text of tokens, and
/// leaves attention to the cache.
class Transformer {
 public:
  /// Of activations of an FFN's set and of its rest, which lie in one buffer.
  static constexpr size_t kPartAlignment = 256;
  struct Options {
    DType dtype = DType::bf16;     // of weights, activations and KV; the residual stream is f32
    int max_rows = 2048;           // rows of one forward
    int max_logit_rows = 64;       // rows of one logits call
    int64_t max_prompt_rows = 0;   // of all steps of forward_by_layers; 0: it is not called
    int max_position = 0;          // RoPE positions
    int64_t longest = 0;           // tokens of the longest sequence; 0: max_position
    Interrupted interrupted = {};  // polled before every product and attention
    Device device = {};
    int n_streamed = 0;  // as WeightPlaces', of a run on a GPU
    Trainable trainable = {};
    bool host_embedding = false;  // as WeightPlaces'
    bool by_channel = false;      // as WeightPlaces'
    int set_channels = 0;         // as WeightPlaces'
    bool rewritten = false;       // as WeightPlaces'
    int n_ranks = 1;              // of which this one has a part; the configuration is the part's

    WeightPlaces places() const {
      return {device, n_streamed, trainable, host_embedding, by_channel, set_channels, rewritten};
    }
  };

  static void plan(const ModelConfig& config, const Options& options, MemoryPlan& plan);
  /// exec     the device of the options
  Transformer(const ModelConfig& config, const Options& options,
              std::unique_ptr<WeightSource> source, Arena& arena,
              const std::function<void(double share)>& on_load = {}, const Exec& exec = {});

  /// Runs all layers over the rows of a step; their K and V go into the cache.
  /// shapes   tokens [step.n_rows], each in [0, vocab_size)
  /// errors   kind interrupted: the step must not be committed. The caller has begun it and will
  ///          commit it; kind input: embedding rows that can no longer be read
  /// kept     empty, or places of the layers' activations: none that has one is fused away
  void forward(std::span<const int32_t> tokens, const kv::Step& step, kv::Cache& cache,
               std::span<const LayerActivations> kept = {});
  /// The same for ids in the memory of the model's device; on a GPU work on the queue alone, which
  /// graphs may record.
  /// shapes   ids [step.arrays.n_rows]; an id out of range gives NaN on a GPU
  void forward_ids(const int32_t* ids, const kv::Step& step, kv::Cache& cache,
                   std::span<const LayerActivations> kept = {});
  /// Several steps of different sequences side by side, as work that a graph may record: products
  /// of one go on while the host attends keys of another. Logits are those of all rows in turn.
  /// steps    each with its number and the rows before it (kv::StepSpec::micro_batch)
  void forward_ids(const int32_t* ids, std::span<const kv::Step> steps, kv::Cache& cache);

  /// Several steps, each after the one before, through one layer after the other: all their rows
  /// stay, so that logits of each follow. Calls on_layer(layers done) after each.
  /// shapes   tokens [steps][n_rows], together at most max_prompt_rows
  /// errors   as forward's, of all steps
  void forward_by_layers(std::span<const std::span<const int32_t>> tokens,
                         std::span<kv::Step> steps, kv::Cache& cache,
                         const std::function<void(int layers)>& on_layer);
  /// The i-th of its steps is the last forward, for residual() and logits. Until the next forward.
  void turn_to(size_t i);

  /// Computes again what a forward of the step did not keep of a layer, from the residual stream
  /// before it, or with `from_middle` gate_up alone, from the stream before the FFN. On the CPU.
  /// Overwrites residual().
  /// to       all places set
  void run_again(int layer, const kv::Step& step, kv::Cache& cache, const LayerActivations& to,
                 bool from_middle);

  /// Writes logits of the last forward; on a GPU graphs may record it.
  /// shapes   out [n, vocab_size] f32, n <= max_logit_rows; rows [n], both on the model's device
  void logits(const Tensor& out, const int32_t* rows);
  /// The same of n rows from `first` on.
  void logits_from(const Tensor& out, int64_t first);
  /// Chooses how a GPU runs the matrix products of a forward, or of logits, of this many rows
  /// (ops::tune_linear), the first time that the number occurs; does nothing on the CPU. Must not
  /// come between a forward and its logits.
  /// scratch  [>= rows, vocab_size] f32 on the device, overwritten: all the rows that logits may go to
  void choose_products(int64_t rows);
  void choose_logit_products(int64_t rows, const Tensor& scratch);

  /// Adapters whose products every forward from now on adds; null: none. It must outlive its use.
  void attach(SideProducts* side) { side_ = side; }

  /// FFN policies whose readings steps name from now on, and which observe steps of all channels;
  /// they outlive this. Shows them the weights, where none are streamed.
  void read_by(ffn::Channels& channels);

  const ModelConfig& config() const { return config_; }
  const Options& options() const { return options_; }
  const Weights& weights() const { return weights_; }
  /// Null where channels are not divided.
  const ChannelSets* sets() const { return sets_.get(); }
  Weights& weights() { return weights_; }
  /// Where they came from.
  const WeightSource& source() const { return *source_; }
  /// Of the last forward, after its last layer: [rows, dim] f32.
  Tensor residual() const {
    return {residual_, DType::f32, {n_rows_, config_.dim}, options_.device};
  }
  /// Of the last logits, their normalised rows: [n, dim].
  Tensor head_in(int64_t n) const { return act(head_in_, n, config_.dim); }
  /// By AttentionSpec::rope.
  std::span<const ops::RopeTable> ropes() const { return ropes_; }

 private:
  void embed_tokens(std::span<const int32_t> tokens);
  void embed(const int32_t* ids);
  /// Rows of this step follow.
  void enter(const kv::Step& step);
  /// What changes products of a matrix, or null.
  SideProducts* side_of(int layer, Role of) const;
  /// A forward begins that is not one of several steps side by side.
  void begin_forward(ReadKind kind);
  /// Calls run(a part of a layer's weights), when they have arrived if they are streamed.
  void with_part(int layer, LayerPart part, const std::function<void(const LayerWeights&)>& run);
  bool streams(int layer) const;
  const LayerNorms& norms(int layer) const {
    return weights_.layers[static_cast<size_t>(layer)].norms;
  }
  void run_layers(const kv::Step& step, kv::Cache& cache, std::span<const LayerActivations> kept);
  void attention_block(int layer, const LayerWeights& w, const kv::Step& step, kv::Cache& cache,
                       const LayerActivations& to);
  /// The same in two parts, of steps side by side.
  void attention_begin(int layer, const LayerWeights& w, const kv::Step& step, kv::Cache& cache);
  void attention_end(int layer, const LayerWeights& w, const kv::Step& step, kv::Cache& cache);
  /// Queries, keys and values of a layer.
  void project(int layer, const LayerWeights& w, const kv::Step& step, kv::Cache& cache,
               const LayerActivations& to);
  void add_attended(int layer, const LayerWeights& w, const LayerActivations& to);
  void run_turn(size_t i);
  void ffn_block(int layer, const LayerWeights& w, const kv::Step& step,
                 const LayerActivations& to);
  /// The same of listed channels; false, and nothing done, where the step reads all.
  bool listed_ffn(int layer, const LayerWeights& w, const kv::Step& step);
  /// The same of channels that are divided: of the set, and but for drafts of the rest.
  void divided_ffn(int layer, const kv::Step& step);
  /// What the rows of a step read; of a draft, whose channels the sets are made.
  ReadKind read_kind(const kv::Step& step);
  Tensor heads_at(void* place) const;
  Tensor gate_up_at(void* place) const;
  /// True if a norm and a product that follows it are one pass; `norm` may be null.
  static bool fuses(const ops::PackedWeights& w, int64_t rows, const ops::LinearFusion& fusion) {
    return fusion.norm_weight != nullptr && ops::fusion_pays(w, rows, fusion);
  }
  /// Queries, keys and values with norms of whole rows of q and k; the same without such norms.
  Tensor with_row_norms(int layer, const Tensor& qkv);
  /// y = norm(x) W^T, in one pass where that pays.
  void normed_linear(int layer, Role of, const Tensor& y, const float* norm,
                     const ops::PackedWeights& w, void* kept = nullptr);
  /// Computes a product that enters the residual stream into y, or adds it there.
  using StreamProduct = std::function<void(const Tensor& y, ops::Accumulate)>;
  /// The residual stream += multiplier * norm(a product and what adapters add to it, summed over
  /// the ranks). Most layers have neither a multiplier nor a norm.
  /// x        the product's input; empty: a product of some neurons, which adapters do not see and
  ///          ranks sum in f32
  /// kept     null, or gets what the norm reads
  void into_stream(int layer, Role of, const Tensor& x, const StreamProduct& product,
                   void* kept = nullptr);
  /// Does so with x W^T.
  void into_stream(int layer, Role of, const Tensor& x, const ops::PackedWeights& w, void* kept);
  struct StreamTarget {
    Tensor y;
    ops::Accumulate accumulate;
  };
  /// A product is computed in the stream, or with `in_parts` in bf16 where ranks read each other's.
  /// All ranks have the stream: rank 0 adds its part to it, the others' parts replace it until the
  /// sum. Branches are computed in their own buffer.
  StreamTarget stream_target(int layer, Role of, int64_t rows, bool in_parts = true) const;
  /// Where a layer writes that is given no places.
  LayerActivations shared_activations() const;
  /// Copies f32 rows of the width of the stream, in the compute type, unless `to` is null.
  void keep(void* to, const float* rows);
  /// Random numbers: products of zeros run at other clocks.
  void fill_random(const Tensor& t);
  void logits_of(const Tensor& out, const Tensor& residual, const int32_t* rows);
  /// The products of an FFN's channels, all or a part of them, for some rows.
  void choose_ffn_products(int64_t rows, Role gate_up, Role down);
  void choose_one(const Tensor& y, const Tensor& x,
                  std::span<const ops::PackedWeights* const> same_shape, ops::Accumulate accumulate,
                  const ops::LinearNeighbours& around = {});
  Tensor act(void* p, int64_t rows, int64_t cols) const {
    return {p, options_.dtype, {rows, cols}, options_.device};
  }

  ModelConfig config_;
  Options options_;
  std::unique_ptr<WeightSource> source_;
  Weights weights_;
  std::vector<ops::RopeTable> ropes_;
  Exec exec_;
  SideProducts* side_ = nullptr;
  ffn::Channels* channels_ = nullptr;
  std::unique_ptr<ChannelSets> sets_;  // null where channels are not divided
  int64_t set_version_ = 0;            // of the lists that they are made by
  int64_t n_rows_ = 0;                 // of the last forward
  int32_t* ids_ = nullptr;           // [max_rows] on a GPU: tokens of a forward, or rows of logits
  float* own_residual_;              // [max_rows, dim]
  float* prompt_residual_;           // [max_prompt_rows, dim]
  float* residual_;                  // of the last forward, in one of these
  std::vector<int64_t> part_begin_;  // rows before each of several steps, and all
  int64_t first_row_ = 0;            // of the step in hand, among those side by side
  float* branch_ = nullptr;          // [max_rows, dim], if a layer has a branch
  float* squares_ = nullptr;         // [max_rows, 2] of norms of whole rows
  void* normed_;                     // [max_rows, dim] act
  char* block_;                   // qkv, q, attention output; or gate_up, ffn: never alive together
  void* head_in_;                 // [max_logit_rows, dim] act
  float* logit_parts_ = nullptr;  // [ranks, max_logit_rows, vocab_rows], of several ranks
  std::span<std::byte> workspace_;
  std::set<int64_t> chosen_, chosen_logits_;  // numbers of rows
};

}  // namespace tandem::model
