#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kv/step.h"
#include "ops/channels.h"
#include "recipe/sparse_section.h"
#include "tensor/arena.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace tandem::ffn {

/// Rows of a step that are read by lists of channels, at most: products of more cost what they
/// compute, not what they read.
inline constexpr int kMaxRows = 16;

/// The FFN of a model.
struct Shape {
  int n_layers = 0;
  int dim = 0;                // D
  int ffn_dim = 0;            // F channels
  DType dtype = DType::bf16;  // of weights and activations
};

/// What a policy is made for.
struct Bounds {
  Shape shape;
  int max_seqs = 1;
  Device device = {};
  std::string fingerprint = {};  // of the model, for files that are of one; empty: not compared
};

/// The weights of a layer's FFN.
struct LayerWeights {
  const ops::PackedWeights& gate_up;  // [2 F, D]
  const ops::PackedWeights& down;     // [D, F]
};

/// Rows of a step that read all channels.
struct Observed {
  Tensor product = {};  // [rows, F] act(g) * u
  Tensor gate_up = {};  // [rows, 2 F] g | u; empty where no policy asks
};

/// Which channels a step reads in a layer.
struct Selection {
  enum class Kind : uint8_t {
    all,
    sequences,  // a list for each slot: those of slot s at ids + s * id_stride, its number at n + s
                // * n_stride; the house makes one of them
    step,       // one for all rows
  };
  Kind kind = Kind::all;
  ops::ChannelList list = {};  // of slot 0, or of the step
  int64_t id_stride = 0, n_stride = 0;
};

/// All that a policy asks of the house.
struct Needs {
  bool prompts = false;     // observes rows of prompts
  bool checks = false;      // and of extend steps that read all channels
  bool gate_up = false;     // of both halves too
  bool after_gate = false;  // selects by act(g), the activated gate
  bool lists = false;       // lists are the sequences' own
  bool by_step = false;     // rows of a step share a list that they would not have one by one
};

/// Which FFN channels forwards read. Every call serves all sequences of a step; on a GPU its work
/// goes to the queue, where graphs may record it, and no call waits. README.md in this folder
/// gives the contract of each hook.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  virtual Needs needs() const = 0;
  /// Its bytes. `prefix` names its buffers.
  virtual void plan(MemoryPlan&, const std::string& /*prefix*/) const {}
  /// Takes the planned memory.
  virtual void allocate(Arena&, const std::string& /*prefix*/) {}
  /// Where its work runs; after allocate, before all hooks below.
  virtual void run_on(const Exec& exec) { exec_ = exec; }
  /// Once, layer by layer, when weights are loaded.
  virtual void read_weights(int /*layer*/, const LayerWeights&) {}
  /// A step that read all channels has gone through the products of a layer, where needs() asks for
  /// such rows; they may not be committed.
  virtual void observe(int /*layer*/, const kv::Step&, const Observed&) {}
  /// A prompt ends: all its rows were observed in all layers.
  virtual void on_prompt(int /*slot*/) {}
  /// Which channels the rows of an extend step read.
  /// gate     [rows, F] act(g) where needs().after_gate, else empty
  virtual Selection select(int layer, const kv::Step&, const Tensor& gate) = 0;
  /// Sequences come and go: `to` becomes a copy of `from`; `slot` ends; `slot` is cut to n tokens.
  virtual void on_fork(int /*from*/, int /*to*/) {}
  virtual void on_release(int /*slot*/) {}
  virtual void on_truncate(int /*slot*/, int /*n*/) {}
  /// Channels of a list, at most, and those that one is expected to have.
  virtual int most_channels() const = 0;
  virtual double expected_channels() const { return most_channels(); }
  /// Where how many they are is known only then: [n_layers, 2] lists so far and channels in them,
  /// where the model computes. Null: a list has as many as expected.
  virtual const int64_t* counted() const { return nullptr; }

 protected:
  Exec exec_;
};

/// errors   kind recipe: no channel is left; kind input: the thresholds' file
std::unique_ptr<Policy> make_policy(const recipe::Sparse& sparse, const Bounds& bounds);

/// What a policy of these settings asks, before there is a model.
Needs needs_of(const recipe::Sparse& sparse);
/// Whether it reads weights when they are loaded.
bool reads_weights(const recipe::Sparse& sparse);

/// Channels of a layer that may be a separate set, which alone steps of these policies read:
/// those of a list that only a prompt changes. 0: there is none.
int set_channels(std::span<const recipe::Sparse> policies, int ffn_dim);

/// Channels that int(keep F) names, for lists made before the gate.
int n_kept(double keep, int ffn_dim);
/// Those that are left when int((1 - keep) F) are dropped, for lists made after it.
int n_left(double keep, int ffn_dim);

}  // namespace tandem::ffn
