#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/weights/layer_ring.h"
#include "model/weights/layer_weights.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"

namespace tandem::model {

/// Parts of layers whose matrices live in pinned host memory, one block a part, and pass through a
/// ring of buffers on a GPU. A separate queue copies them, ahead of the forward by as many blocks
/// as there are buffers and regardless of where a forward ends: the first blocks of the next one
/// arrive while logits, draws or a draft are computed. Kernels and copies wait for each other on
/// the GPU; the host waits for neither.
class LayerStream {
 public:
  struct Part {
    int layer = 0;
    LayerPart part = LayerPart::attention;
    size_t bytes = 0;

    std::string name() const;  // of its block in a plan
  };
  /// parts    in the order in which a forward uses them, at least one
  static void plan(std::span<const Part> parts, Device device, MemoryPlan& plan);
  /// Takes the planned buffers. `arena` must live until all parts are loaded, its memory longer.
  /// errors   kind memory, device
  LayerStream(std::vector<Part> parts, Device device, Arena& arena);
  ~LayerStream();
  LayerStream(const LayerStream&) = delete;
  LayerStream& operator=(const LayerStream&) = delete;

  bool holds(int layer, LayerPart part) const { return find(layer, part) >= 0; }

  /// Loads the next part: `fill` brings its matrices into GPU memory of its size, and has waited
  /// for that when it returns them; a pinned block becomes a copy of those bytes.
  /// errors   kind memory, device, and those of `fill`
  void load(const std::function<LayerWeights(std::byte* memory)>& fill);
  /// All parts are loaded: the first copies begin.
  void start();

  /// A forward begins on `compute`, the queue of them all.
  void begin_forward(cuda::Queue& compute, ReadKind kind);
  /// A streamed part, in the order of the forward, valid until `release`, for work that `compute`
  /// gets from now on.
  const LayerWeights& acquire(cuda::Queue& compute, int layer, LayerPart part);
  /// All work on it is on the queue; when it is done its buffer gets another.
  void release(cuda::Queue& compute);

  /// The matrices of a part as they are in a buffer, for measuring products of such ones: not
  /// before the queue has seen `settle`, nor once a forward has begun.
  const LayerWeights& in_buffer(int i, LayerPart part) const;
  int n_buffers() const { return ring_.n_buffers(); }
  /// The matrices of a part where they lie on the host.
  LayerWeights on_host(int layer, LayerPart part) const;
  /// Work on `compute` that changes what lies on the host, between forwards.
  void change(cuda::Queue& compute, const std::function<void()>& work);
  /// Work that `compute` gets from now on starts after all copies so far.
  void settle(cuda::Queue& compute);
  /// Waits for all copies so far.
  /// errors   kind device
  void wait() const { cuda::wait(copies_.stream()); }

  /// Bytes that every forward of a kind brings to the GPU.
  size_t bytes(ReadKind kind) const;

 private:
  struct Block {
    std::byte* host;
    cuda::PinnedRange pinned;
    std::vector<LayerWeights> in_buffers = {};  // its matrices, if they lay in each buffer
    Block(std::byte* data, size_t bytes) : host(data), pinned(data, bytes) {}
  };
  struct Buffer {
    std::byte* data;
    cuda::Event copied, used;
    explicit Buffer(std::byte* p) : data(p) {}
  };
  int find(int layer, LayerPart part) const;
  void copy(int block, Buffer& to);
  void fill_buffers();

  std::vector<Part> parts_;
  Arena& arena_;
  LayerRing ring_;
  std::deque<Block> blocks_;  // of the parts loaded so far
  std::deque<Buffer> buffers_;
  cuda::Queue copies_;
};

}  // namespace tandem::model
