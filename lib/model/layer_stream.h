#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "model/layer_ring.h"
#include "model/layer_weights.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::model {

/// Layers whose matrices live in pinned host memory, one block a layer, and pass through a ring of
/// buffers on a GPU. A separate queue copies them, ahead of the forward by as many layers as there
/// are buffers and regardless of where a forward ends: the first layers of the next one arrive
/// while logits, draws or a draft are computed. Kernels and copies wait for each other on the GPU;
/// the host waits for neither.
class LayerStream {
 public:
  /// layers       of the model, rising, at least one
  /// block_bytes  of a layer
  static void plan(std::span<const int> layers, size_t block_bytes, Device device,
                   MemoryPlan& plan);
  /// Takes the planned buffers. `arena` must live until all layers are loaded, its memory longer.
  /// errors   kind memory, device
  LayerStream(std::vector<int> layers, size_t block_bytes, Device device, Arena& arena);
  ~LayerStream();
  LayerStream(const LayerStream&) = delete;
  LayerStream& operator=(const LayerStream&) = delete;

  bool holds(int layer) const;

  /// Loads the next layer: `fill` brings its matrices into GPU memory of block_bytes, and has
  /// waited for that when it returns them; a pinned block becomes a copy of those bytes.
  /// norms    of that layer, which stay on the GPU
  /// errors   kind memory, device, and those of `fill`
  void load(const LayerNorms& norms, const std::function<LayerWeights(std::byte* memory)>& fill);
  /// All layers are loaded: the first copies begin.
  void start();

  /// A forward begins on `compute`, the queue of them all.
  void begin_forward(cuda::Queue& compute);
  /// The next streamed layer's weights, valid until `release`, for work that `compute` gets from
  /// now on.
  const LayerWeights& acquire(cuda::Queue& compute);
  /// All work on them is on the queue; when it is done their buffer gets another layer.
  void release(cuda::Queue& compute);

  /// The weights in a buffer, for measuring products of layers like these: not before the queue has
  /// seen `settle`, nor once a forward has begun.
  const LayerWeights& in_buffer(int i) const { return buffers_[static_cast<size_t>(i)].weights; }
  int n_buffers() const { return ring_.n_buffers(); }
  /// Work that `compute` gets from now on starts after all copies so far.
  void settle(cuda::Queue& compute);
  /// Waits for all copies so far.
  /// errors   kind device
  void wait() const { cuda::wait(copies_.stream()); }

  int n_layers() const { return static_cast<int>(layers_.size()); }
  /// Bytes that every forward brings to the GPU.
  size_t bytes() const { return layers_.size() * block_bytes_; }

 private:
  struct Block {
    std::byte* host;
    cuda::PinnedRange pinned;
    LayerNorms norms;  // on the GPU, not in the block
    Block(std::byte* data, size_t bytes, const LayerNorms& layer_norms)
        : host(data), pinned(data, bytes), norms(layer_norms) {}
  };
  struct Buffer {
    std::byte* data;
    LayerWeights weights = {};  // those that lie in `data`, now or soon
    cuda::Event copied, used;
    explicit Buffer(std::byte* p) : data(p) {}
  };
  void copy(int block, Buffer& to);

  std::vector<int> layers_;
  size_t block_bytes_;
  Arena& arena_;
  LayerRing ring_;
  std::deque<Block> blocks_;  // of the layers loaded so far
  std::deque<Buffer> buffers_;
  cuda::Queue copies_;
};

}  // namespace tandem::model
