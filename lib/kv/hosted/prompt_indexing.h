#pragma once
#include <future>
#include <memory>
#include <vector>

#include "kv/hosted/hosted_index.h"
#include "kv/paged_store.h"
#include "tensor/cuda.h"

namespace tandem::kv {

/// The index of prompts whose keys go to host memory, made layer by layer while the forward is at
/// the next one: in the order of the forward's queue, from the keys where prompts are read, or by a
/// separate thread as soon as a layer's keys have arrived in host memory (HostedIndex::on_layer).
class PromptIndexing {
 public:
  enum class Where { in_queue, on_thread };

  /// hosted, far, prompt  outlive this; prompt has one layer of whole texts (kv/hosted/hosted_keys.h)
  /// copies   where keys are copied to host memory
  PromptIndexing(HostedIndex& hosted, const PagedStore& far, const PagedStore& prompt, Where where,
                 const Exec& copies);
  ~PromptIndexing() { give_up(); }
  PromptIndexing(const PromptIndexing&) = delete;
  PromptIndexing& operator=(const PromptIndexing&) = delete;

  /// Whether the index is made from the keys in host memory, and not from the store of prompts.
  bool reads_far() const { return on_thread_; }

  /// A prompt that ends.
  struct Prompt {
    int slot, length;
  };
  /// A layer's keys are in the store of prompts, and where reads_far() their copies to host memory
  /// on the queue of these.
  /// Waits until a separate thread has made the index of the layer before.
  /// errors   those of that work
  void layer(int layer, std::vector<Prompt> prompts);
  /// Waits until all is made.
  /// errors   as layer
  void finish();
  /// Waits, and drops the entries of prompts that were not finished.
  void give_up() noexcept;

 private:
  HostedIndex& index_;
  const PagedStore &far_, &prompt_;
  Exec copies_;
  bool on_thread_;
  int threads_ = 1;                      // that share its loops
  std::unique_ptr<cuda::Event> copied_;  // by a GPU
  std::future<void> work_;
  std::vector<Prompt> begun_;  // since the last finish
};

}  // namespace tandem::kv
