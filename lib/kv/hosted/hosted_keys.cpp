#include "kv/hosted/hosted_keys.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace tandem::kv {
namespace {

int pages_of(int tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

PagedStore::Spec far_spec(const HostedKeys::Spec& s) {
  PagedStore::Spec spec = s.whole;
  spec.layers = s.layers;
  spec.max_moves = 0;
  spec.device = {};
  spec.prefix = "kv/host";
  spec.eight_bit = s.eight_bit;
  spec.copied_by = s.whole.device;
  return spec;
}

PagedStore::Spec prompt_spec(const HostedKeys::Spec& s) {
  PagedStore::Spec spec = s.whole;
  spec.layers = s.layers;
  spec.max_moves = 0;
  spec.one_layer = true;
  if (s.streamed) {
    spec.prefix = "kv/ring";
    spec.n_pages += s.spare_pages();
  } else {
    spec.prefix = "kv/prompt";
    // Texts share no page.
    spec.n_pages = std::min(spec.n_pages, pages_of(s.prompt_tokens) + spec.max_slots);
  }
  return spec;
}

PagedStore::Spec near_spec(const HostedKeys::Spec& s) {
  PagedStore::Spec spec = s.whole;
  spec.layers = s.layers;
  spec.prefix = "kv/near";
  // The first page may begin long before its first token that is read, and a fork copies its last.
  const int pages = pages_of(s.near_tokens) + 2;
  // A text that goes over to near takes pages for itself, of tokens too that others share in far.
  const int slots = s.near_slots > 0 ? std::min(s.near_slots, spec.max_slots) : spec.max_slots;
  spec.n_pages = slots * std::min(spec.max_pages, pages);
  // Copies are of separate sequences, and so may share pages.
  for (const int tokens : s.reader_tokens)
    spec.n_pages += s.reader_slots * std::min(spec.max_pages, pages_of(tokens));
  spec.max_slots *= 1 + static_cast<int>(s.reader_tokens.size());
  return spec;
}

}  // namespace

void HostedKeys::plan(const Spec& spec, MemoryPlan& plan) {
  PagedStore::plan(far_spec(spec), plan);
  PagedStore::plan(prompt_spec(spec), plan);
  PagedStore::plan(near_spec(spec), plan);
}

HostedKeys::HostedKeys(const Spec& spec, PagedStore& whole, Arena& arena, const Exec& exec)
    : far_(far_spec(spec), arena, {}, whole),
      prompt_(prompt_spec(spec), arena, exec),
      near_(near_spec(spec), arena, exec),
      exec_(exec),
      narrow_(spec.eight_bit),
      rounds_prompt_(spec.eight_bit && spec.index_reads_prompt),
      slots_(static_cast<size_t>(spec.whole.max_slots)) {
  for (int slot = 0; slot < near_.spec().max_slots; ++slot) near_.acquire();
  for (int slot = 0; slot < spec.whole.max_slots; ++slot) near_.release(slot);
  if (!exec.on_gpu()) return;
  if (spec.cpu_reads) bound_ = std::make_unique<BoundThreads>();
  copies_ = std::make_unique<cuda::Queue>(exec.queue->device());
  written_ = std::make_unique<cuda::Event>();
  const PagePools pools = far_.pools();
  // Copies are of pages of a layer.
  const size_t bytes = far_.pool_bytes(), layer = bytes / spec.layers.size();
  pinned_k_ = PinnedPages(pools.k, bytes, layer);
  pinned_v_ = PinnedPages(pools.v, bytes, layer);
  const size_t scale_bytes = far_.scale_bytes();
  if (spec.eight_bit)
    pinned_scales_ = PinnedPages(far_.all_scales(), scale_bytes, scale_bytes / spec.layers.size());
  if (spec.gpu_reads && !why_unpinned().empty())
    throw make_error(
        ErrorKind::memory, "cache.place",
        "is host and needs {} of pinned memory for the GPU to read, which the system refused: {}",
        format_bytes(2 * bytes + scale_bytes), why_unpinned())
        .hint(
            "raise the limit of locked memory (ulimit -l, container limits), or set cache.attend "
            "cpu and cache.index host, which need none");
}

const std::string& HostedKeys::why_unpinned() const {
  for (const PinnedPages* pages : {&pinned_k_, &pinned_v_})
    if (!pages->refusal().empty()) return pages->refusal();
  return pinned_scales_.refusal();
}

void HostedKeys::acquire(int slot) {
  const int near = near_.acquire(), prompt = prompt_.acquire();
  TANDEM_CHECK(near == slot && prompt == slot,
               "slots differ: {} and {} on the device, {} on the host", near, prompt, slot);
  at(slot) = {};
}

void HostedKeys::fork(int from, int to) {
  const int near = near_.fork(from), prompt = prompt_.acquire();
  TANDEM_CHECK(near == to && prompt == to, "slots differ: {} and {} on the device, {} on the host",
               near, prompt, to);
  at(to) = at(from);
}

void HostedKeys::release(int slot) {
  near_.release(slot);
  prompt_.release(slot);
  texts_.erase(slot);
}

void HostedKeys::store(int slot) {
  Slot& s = at(slot);
  if (!s.split) return;
  const int length = far_.length(slot);
  far_.copy_from(near_, slot, s.far, length);
  wrote_far(slot);
}

void HostedKeys::hold_far(int slot) {
  if (!at(slot).split) return;
  store(slot);
  near_.truncate(slot, 0);
  at(slot).split = false;
}

void HostedKeys::hold_split(int slot, int begin) {
  const int length = far_.length(slot);
  if (at(slot).split) {
    bool all = true;
    for (int page = begin / kPageTokens; page * kPageTokens < length; ++page)
      all = all && near_.page(slot, page) >= 0;
    if (all) return;
    hold_far(slot);
  }
  TANDEM_CHECK(at(slot).far == length, "only {} of {} tokens are in host memory", at(slot).far,
               length);
  near_.adopt(slot, length, begin);
  near_.copy_from(far_, slot, begin, length);
  at(slot).split = true;
}

void HostedKeys::make_room(int slot) {
  store(slot);
  if (!at(slot).split) return;
  near_.drop(slot, 0, range_begin_(slot));
}

void HostedKeys::begin_prompts() {
  for (const int slot : texts_) prompt_.truncate(slot, 0);
  texts_.clear();
}

void HostedKeys::hold_prompt(int slot, int n) {
  hold_far(slot);
  texts_.insert(slot);  // what it has got, too, where it cannot get all
  prompt_.reserve(slot, n);
}

void HostedKeys::begin_layer(int layer, int slot, int n_before) {
  if (n_before > 0 && !copied_.empty()) exec_.queue->follow(*copied_.back());
  prompt_.copy_layer_from(far_, layer, slot, 0, n_before);
}

void HostedKeys::begin_step(size_t i) {
  if (i < copied_.size()) exec_.queue->follow(*copied_[i]);
}

void HostedKeys::end_layer(int layer, std::span<const std::vector<Rows>> steps,
                           const std::function<void()>& index) {
  const bool apart = copies_ && !narrow_;
  if (apart) {
    copied_.resize(steps.size());
    for (auto& copied : copied_)
      if (!copied) copied = std::make_unique<cuda::Event>();
    written_->record(*exec_.queue);
    // Its copies go first: keys that it reads are written over as soon as they are done.
    if (index) index();
    copies_->follow(*written_);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const Rows& rows : steps[i]) {
      // A page that two steps write goes with the first of them, and so before either writes the
      // next layer's.
      const bool goes_on = rows.begin > far_.length(rows.slot);
      const int begin =
          goes_on ? (rows.begin + kPageTokens - 1) / kPageTokens * kPageTokens : rows.begin;
      far_.copy_layer_from(prompt_, layer, rows.slot, begin, rows.end,
                           apart ? copies_.get() : nullptr);
      // An index of prompts is then that of the keys which later hooks find in far.
      if (rounds_prompt_) prompt_.copy_layer_from(far_, layer, rows.slot, begin, rows.end);
    }
    if (apart) copied_[i]->record(*copies_);
  }
  if (index && !apart) index();
}

void HostedKeys::finish_copies() {
  if (copies_) copies_->wait();
}

void HostedKeys::wrote_far(int slot) {
  if (exec_.on_gpu()) exec_.queue->wait();
  at(slot).far = far_.length(slot);
}

void HostedKeys::committed(int slot, int recent) {
  Slot& s = at(slot);
  if (!s.split) return;
  const int length = far_.length(slot);
  near_.set_length(slot, length);
  if (length - s.far > std::min(recent, kPageTokens - 1)) store(slot);
}

void HostedKeys::cut(int slot) {
  Slot& s = at(slot);
  const int length = far_.length(slot);
  s.far = std::min(s.far, length);
  if (s.split) near_.set_length(slot, length);
}

}  // namespace tandem::kv
