#pragma once
#include <cstdint>
#include <vector>

namespace tandem::model {

/// The layers of a model that live in host memory when `n_streamed` of them do, in rising order.
/// They are spread evenly: a resident layer that computes longer than others take to copy then
/// fills the buffers for the layers after it, and none waits for a whole run of copies. The first
/// is among them, since its copy costs nothing while logits, draws or a draft follow a forward.
/// shapes   n_streamed in [0, n_layers]
std::vector<int> streamed_layers(int n_layers, int n_streamed);

/// How many layers' worth of GPU memory they pass through. Two keep the link busy: one is being
/// copied while another computes, and a third would only take the place of a resident layer, which
/// saves a copy in every forward where the third buffer saves at most as much waiting.
int ring_buffers(int n_streamed);

/// The order in which layers pass through a ring of buffers, forward after forward: layer i of the
/// stream is used, then its buffer gets the layer that comes n_buffers later, perhaps in the next
/// forward. Numbers here count streamed layers alone.
class LayerRing {
 public:
  explicit LayerRing(int n_layers) : n_layers_(n_layers), n_buffers_(ring_buffers(n_layers)) {}

  /// The layer that is used next, and the buffer that holds it.
  int layer() const { return static_cast<int>(used_ % n_layers_); }
  int buffer() const { return static_cast<int>(used_ % n_buffers_); }
  /// The layer that goes into buffer() when the one there has been used.
  int successor() const { return static_cast<int>((used_ + n_buffers_) % n_layers_); }
  void advance() { ++used_; }
  /// From the first layer in the first buffer.
  void restart() { used_ = 0; }
  bool at_first_layer() const { return layer() == 0; }
  int n_buffers() const { return n_buffers_; }

 private:
  int n_layers_, n_buffers_;
  int64_t used_ = 0;
};

}  // namespace tandem::model
