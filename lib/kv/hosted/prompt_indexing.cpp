#include "kv/hosted/prompt_indexing.h"

#include "base/error.h"
#include "base/parallel.h"

namespace tandem::kv {

PromptIndexing::PromptIndexing(HostedIndex& hosted, const PagedStore& far, const PagedStore& prompt,
                               Where where, const Exec& copies)
    : index_(hosted),
      far_(far),
      prompt_(prompt),
      copies_(copies),
      on_thread_(where == Where::on_thread) {
  if (!on_thread_) return;
  if (copies_.on_gpu()) copied_ = std::make_unique<cuda::Event>();
  // One core is the forward's, whose thread gives the GPU its work.
  threads_ = std::max(1, max_threads() - 1);
}

void PromptIndexing::layer(int layer, std::vector<Prompt> prompts) {
  if (work_.valid()) work_.get();
  begun_ = prompts;
  const auto index = [this, layer, prompts = std::move(prompts)](const PagedStore& store) {
    for (const Prompt& p : prompts) index_.on_layer(layer, p.slot, p.length, store);
  };
  if (!on_thread_) return index(prompt_);
  if (copied_) copied_->record(*copies_.queue);
  work_ = std::async(std::launch::async, [this, index] {
    // A new thread's loops would have a thread for every CPU, more than policies have memory for.
    set_threads(threads_);
    if (copied_) {
      cuda::use_device(copies_.queue->device());
      copied_->wait();
    }
    index(far_);
  });
}

void PromptIndexing::finish() {
  if (work_.valid()) work_.get();
  begun_.clear();
}

void PromptIndexing::give_up() noexcept {
  if (work_.valid()) work_.wait();
  work_ = {};
  for (const Prompt& p : begun_) try {
      index_.on_give_up(p.slot);
    } catch (const std::exception&) {
      // The index is as it was before the prompt, or the run ends with the first error.
    }
  begun_.clear();
}

}  // namespace tandem::kv
