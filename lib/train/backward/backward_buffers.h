#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "base/interrupt.h"
#include "model/forward/transformer.h"
#include "model/spec/config.h"
#include "tensor/arena.h"
#include "train/backward/frontier.h"

namespace tandem::train {

/// Shapes of a backward pass.
struct BackwardSpec {
  model::ModelConfig config;
  DType dtype = DType::f32;  // of weights and activations
  int max_rows = 0;          // of a micro-batch
  int head_rows = 512;       // rows whose logits are there at once
  Recomputation recompute = Recomputation::light;
  Interrupted interrupted = {};  // polled before every layer
  Device device = {};
};

/// Memory of a backward pass: activations that the forward keeps, and gradients of activations,
/// which layers use in turn. Numbers have the compute type unless said.
struct BackwardBuffers {
  std::vector<model::LayerActivations> kept;  // by layer
  model::LayerActivations again;  // of those that are computed again, of a layer at a time
  float* dstream;                 // [max_rows, dim] gradient of the residual stream
  void* dstream_act;              // narrow copy of dstream, or gradient of a branch
  float* wide;                    // [max_rows, dim] for a stream kept in another type than f32
  void* normed;                   // [max_rows, dim]
  void* dnormed;                  // [max_rows, dim]
  void* dwide;                    // [max_rows, ffn_dim or q_dim] of the FFN's or attention's output
  void* dqkv;                     // [max_rows, (n_heads + 2 n_kv_heads) head_dim]
  void* listed;                   // [max_rows, most listed columns]
  float* inverse;                 // [max_rows] scales of a norm
  float* dnorms;                  // [max_rows, 2 head_dim], or of whole rows of q and k
  float* logits;                  // [head_rows, vocab]
  void* dlogits;                  // the same in the compute type; of f32 it is logits
  float* losses;                  // [max_rows]
  float* dense;                   // [out, in] of the largest matrix with single trained elements
  // Of a run on a GPU, which has no other way to lists that the host makes:
  int32_t* rows = nullptr;        // [max_rows] supervised rows
  int32_t* targets = nullptr;     // [max_rows] and what they are to predict
  int32_t* token_rows = nullptr;  // lists of TokenRows, where the embedding is trained
  std::span<std::byte> workspace;

  static void plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan);
  BackwardBuffers(const BackwardSpec& spec, const Frontier& frontier, Arena& arena);
};

}  // namespace tandem::train
