#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/hosted/hosted_keys.h"
#include "kv/step.h"
#include "tensor/cuda.h"

namespace tandem::kv {

/// Keys in host memory that pass through two buffers on the forward's device, whole texts of a
/// layer in each under the page ids of the whole store, so that an extend step attends as if they
/// had always been there. Both lie in the memory of prompts, which go through the layers while no
/// step does: one at its beginning, one at its end. Pages that both have room for apart are copied
/// while the other buffer's layer computes, those in the memory of both once it has: attention
/// takes a small part of the time of a copy, so that an eighth of a layer apart keeps the link
/// busy. A separate queue copies far pages, of a step's sequences each once, ahead of the layer
/// that computes by as much as the ring holds, and regardless of where a step ends: the first
/// layers of the next one arrive while logits and draws are computed. Kernels and copies wait for
/// each other on the GPU; the host waits for neither. On the CPU copies are made at once.
class KeyStream {
 public:
  /// whole, keys   outlive this
  KeyStream(const HostedKeys::Spec& spec, PagedStore& whole, HostedKeys& keys, const Exec& exec);
  ~KeyStream();
  KeyStream(const KeyStream&) = delete;
  KeyStream& operator=(const KeyStream&) = delete;

  /// Keys of a layer that the step's rows see, their own included, which are near already: for
  /// work that the queue gets from now on until `release` of the same layer. The layers of a step
  /// come in their order; one that is given up leaves nothing to clear.
  const PagedStore& acquire(int layer, const Step& step);
  void release(int layer);
  /// Texts in host memory have changed otherwise than by growing, or are about to: the ring is
  /// empty.
  void forget();
  /// The same, and its memory is that of prompts, for work that the queue gets from now on until
  /// the next acquire.
  void lend();

  /// Bytes that were asked to go to the ring from host memory since the start.
  double bytes() const { return bytes_; }
  /// Waits until no copies run ahead.
  /// errors   kind device
  void wait() const;

 private:
  struct Buffer {
    PagedStore store;                           // one layer
    Range apart;                                // pages that lie in no other buffer's memory
    int place = -1;                             // of its layer among the hosted ones; -1: none
    std::vector<uint8_t> held;                  // [pages] whether it has the far page
    std::unique_ptr<cuda::Event> copied, used;  // on a GPU
    /// in, first   whose memory it is, and from which page on
    Buffer(const PagedStore::Spec& spec, const Exec& exec, PagedStore& whole, const PagedStore& in,
           int first, Range pages_apart);
    bool is_apart(size_t page) const;
    /// Another buffer takes the memory of the other pages.
    void lose_shared();
  };
  enum class Part : uint8_t { apart, whole };
  int place_of(int layer) const;
  int n_layers() const { return static_cast<int>(layers_.size()); }
  Buffer& buffer_of(int place) { return *buffers_[static_cast<size_t>(place) % buffers_.size()]; }
  /// Brings what the buffer of a layer lacks of the wanted pages. The whole of it takes the memory
  /// that is not its own alone from the other buffer, whose layer must have been used.
  void bring(int place, Part part);

  std::vector<int> layers_;
  HostedKeys& keys_;
  Exec exec_;
  std::unique_ptr<cuda::Queue> copies_;  // on a GPU
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<uint8_t> wanted_;  // [pages] whether the step in hand reads the far page
  double bytes_ = 0;
};

}  // namespace tandem::kv
