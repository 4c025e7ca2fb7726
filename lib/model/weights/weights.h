#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "model/weights/layer_stream.h"
#include "model/weights/layer_weights.h"
#include "model/weights/weight_source.h"
#include "ops/linear.h"
#include "tensor/arena.h"
#include "tensor/pinned_pages.h"

namespace tandem::model {

/// Callbacks of loading, made every few hundred rows of a matrix.
struct LoadEvents {
  Interrupted interrupted = {};
  std::function<void(double share)> progress = {};  // of all bytes, 0 to 1
};

/// Weights that a run on the CPU changes or takes input gradients of.
struct Trainable {
  int from = std::numeric_limits<int>::max();  // matrices of layers from this one on, and the head
  bool embedding = false;                      // its rows are in memory, not read from files
  bool codes = false;  // these matrices are codes too, if the configuration says so

  bool any() const { return from < std::numeric_limits<int>::max(); }
};

/// Where weights live.
struct WeightPlaces {
  Device device = {};
  /// What a GPU's run keeps in pinned host memory (LayerStream): layers, or where channels are
  /// divided the rest of as many, then their sets, then their attention.
  int n_streamed = 0;
  Trainable trainable = {};
  /// A GPU's run keeps the embedding there too, and fetches the rows that it needs; not where the
  /// head has them.
  bool host_embedding = false;
  /// FFN matrices can be read channel by channel too (ops/channels.h).
  bool by_channel = false;
  /// Channels of an FFN that are a separate set, on a GPU; 0: they are not divided.
  int set_channels = 0;
  /// Rows of the layers' matrices are written again (AdapterSwitch): these are numbers.
  bool rewritten = false;

  bool divides() const { return set_channels > 0; }
};

/// How many layers have each part in host memory.
struct StreamedParts {
  int attention = 0, ffn = 0, rest = 0;
};
StreamedParts streamed_parts(int n_layers, const WeightPlaces& places);

/// Bytes of weights that a forward reads, and of them those that it brings from host memory.
struct ForwardBytes {
  double read = 0, streamed = 0;
};
ForwardBytes forward_bytes(const ModelConfig& config, DType dtype, const WeightPlaces& places,
                           ReadKind kind);

struct Weights {
  std::vector<LayerWeights> layers;     // parts that are resident, and all norms
  std::unique_ptr<LayerStream> stream;  // null: all are
  std::span<float> norms;               // all, as norm_offset places them
  const float* out_norm = nullptr;      // [dim]
  ops::PackedWeights lm_head;           // [vocab, dim]; tied heads pack the embedding
  ops::PackedWeights own_embedding;     // [vocab, dim], on a GPU or trainable, if not tied
  void* host_embedding = nullptr;       // the same in pinned host memory, of a run on a GPU
  PinnedPages pinned_embedding;

  /// Rows of the embedding where it is trainable.
  const ops::PackedWeights& embedding() const {
    return own_embedding.empty() ? lm_head : own_embedding;
  }
  /// Where kernels of the run's GPU read them, [vocab, dim].
  Tensor device_embedding() const {
    const ops::PackedWeights& table = embedding();
    return {host_embedding != nullptr ? host_embedding : table.device_rows(),
            table.input(),
            {table.out(), table.in()},
            table.device()};
  }

  /// The same matrix of all layers where it is in separate GPU memory, then in that of the ring.
  std::vector<const ops::PackedWeights*> on_device(Role role) const;

  static void plan(const ModelConfig& config, DType dtype, MemoryPlan& plan,
                   const WeightPlaces& places = {});
  /// errors   kind input, interrupted; device; memory: the embedding cannot be pinned
  static Weights load(const ModelConfig& config, DType dtype, const WeightSource& source,
                      Arena& arena, const LoadEvents& events = {}, const WeightPlaces& places = {});
  /// Scratch for any of the products on at most `max_rows` rows (`head_rows` for the head), and for
  /// input gradients of codes.
  static size_t workspace_bytes(const ModelConfig& config, DType dtype, int64_t max_rows,
                                int64_t head_rows, const WeightPlaces& places);
  /// Bytes of weights that one decode step reads.
  size_t bytes() const;
  /// Of them, those of gate and up, and of down.
  size_t gate_up_bytes() const;
  size_t down_bytes() const;

 private:
  size_t bytes_of(std::initializer_list<Role> roles) const;
};

}  // namespace tandem::model
