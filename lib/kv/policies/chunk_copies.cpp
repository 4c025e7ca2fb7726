#include "kv/policies/chunk_copies.h"

#include <algorithm>
#include <numeric>

#include "kv/hosted/hosted_keys.h"

namespace tandem::kv {

ChunkCopies::ChunkCopies(ChunkKeys& keys, int chunk, const Bounds& bounds)
    : keys_(keys),
      chunk_(chunk),
      bounds_(bounds),
      copies_(keys.capacity() * chunk, bounds.far_layers, bounds),
      is_far_(static_cast<size_t>(bounds.geometry.n_layers)),
      rows_(static_cast<size_t>(keys.capacity() * chunk)) {
  for (const int layer : bounds.far_layers) is_far_[static_cast<size_t>(layer)] = 1;
  std::iota(rows_.begin(), rows_.end(), 0);
}

void ChunkCopies::read_hosted(HostedKeys& hosted, int i) {
  hosted_ = &hosted;
  copies_.keep_in(hosted.near(), hosted.copies_slot(i, 0));
}

const PagedStore& ChunkCopies::far() const { return hosted_->far(); }

void ChunkCopies::make_room(int slot) { hosted_->make_room(slot); }

void ChunkCopies::copy(int slot, int layer, const PagedStore& from) {
  const KeptLists& lists = keys_.kept();
  const auto ordinal = std::ranges::lower_bound(lists.layers(), layer) - lists.layers().begin();
  copies_.copy(slot,
               {.layer = layer,
                .ids = lists.at(slot, static_cast<int>(ordinal), 0),
                .id_stride = lists.capacity(),
                .run = bounds_.on_gpu() ? chunk_ : 1,
                .pages = keys_.pages_of(slot, from)},
               from);
  if (&from == &far()) hosted_->count_read(tokens(slot) * bounds_.geometry.token_bytes());
}

void ChunkCopies::copy_all(int slot) {
  for (const int layer : bounds_.far_layers) copy(slot, layer, far());
}

void ChunkCopies::set_rest(int slot, int rest, int n) {
  if (rest > 0 && n * chunk_ > tokens(slot)) {
    // Chunks that had given way come back: the text is shorter now.
    make_room(slot);
    begin(slot, n);
    copy_all(slot);
  }
  copies_.set_rest(slot, rest, n * chunk_);
}

void ChunkCopies::count_choice(int n_keys) {
  hosted_->count_read(n_keys * bounds_.geometry.token_bytes() / 2);
}

}  // namespace tandem::kv
