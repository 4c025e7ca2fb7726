#pragma once
#include <future>
#include <memory>
#include <vector>

#include "kv/policy.h"

namespace tandem::kv {

/// The index of prompts whose keys go to host memory, made layer by layer while the forward is at
/// the next one: with a GPU by a separate thread, as soon as a layer's keys have arrived.
class PromptIndexing {
 public:
  /// policy, far  outlive this
  PromptIndexing(Policy& policy, const PagedStore& far, const Exec& exec);
  ~PromptIndexing() { give_up(); }
  PromptIndexing(const PromptIndexing&) = delete;
  PromptIndexing& operator=(const PromptIndexing&) = delete;

  /// A prompt that ends.
  struct Prompt {
    int slot, length;
  };
  /// The copies of a layer's keys to host memory are on the queue. Waits until the index of the
  /// layer before is made.
  /// errors   those of that work
  void layer(int layer, std::vector<Prompt> prompts);
  /// Waits until all is made.
  /// errors   as layer
  void finish();
  /// Waits, and drops the entries of prompts that were not finished.
  void give_up() noexcept;

 private:
  Policy& policy_;
  const PagedStore& far_;
  Exec exec_;
  std::unique_ptr<cuda::Event> copied_;  // on a GPU
  std::future<void> work_;
  std::vector<Prompt> begun_;  // since the last finish
};

}  // namespace tandem::kv
