#include "model/weights/layer_ring.h"

#include <algorithm>

#include "base/check.h"
#include "base/spread.h"

namespace tandem::model {

std::vector<int> streamed_layers(int n_layers, int n_streamed) {
  TANDEM_CHECK(n_streamed >= 0 && n_streamed <= n_layers, "cannot offload {} of {} layers",
               n_streamed, n_layers);
  return spread_layers(n_layers, n_streamed);
}

int ring_buffers(int n_blocks) { return std::min(n_blocks, 2); }

LayerRing::LayerRing(std::vector<int> all, std::vector<int> set)
    : all_(std::move(all)),
      set_(std::move(set)),
      n_buffers_(ring_buffers(static_cast<int>(all_.size()))) {
  TANDEM_CHECK(!all_.empty(), "the ring has no blocks");
  restart(ReadKind::all);
}

bool LayerRing::begin(ReadKind kind) {
  if (now_.kind == ReadKind::all) after_all_ = kind;
  const bool ends_run = now_.kind == ReadKind::set && kind == ReadKind::all;
  if (ends_run) last_sets_ = now_.n_sets;
  now_ = {kind, kind == ReadKind::set ? now_.n_sets + 1 : 0, 0};
  if (order(kind).empty()) return true;
  if (held_.front().kind == kind && held_.front().at == 0) return true;
  restart(kind);
  return false;
}

void LayerRing::restart(ReadKind kind) {
  used_ = 0;
  held_.clear();
  next_ = {kind, now_.n_sets, 0};
  for (int i = 0; i < n_buffers_; ++i) hold_next();
}

std::vector<int> LayerRing::held() const {
  std::vector<int> blocks;
  for (const Held& h : held_) blocks.push_back(h.block);
  return blocks;
}

int LayerRing::advance() {
  ++used_;
  held_.pop_front();
  hold_next();
  return held_.back().block;
}

LayerRing::Place LayerRing::guess_next(const Place& place) const {
  const bool sets_follow =
      place.kind == ReadKind::all ? after_all_ == ReadKind::set : place.n_sets < last_sets_;
  // Forwards that use no block are passed over.
  if (set_.empty() || !sets_follow) return {};
  return {ReadKind::set, place.n_sets + 1, 0};
}

void LayerRing::hold_next() {
  if (next_.at == order(next_.kind).size()) next_ = guess_next(next_);
  held_.push_back({order(next_.kind)[next_.at], next_.kind, next_.at});
  ++next_.at;
}

}  // namespace tandem::model
