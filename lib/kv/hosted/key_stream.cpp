#include "kv/hosted/key_stream.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace tandem::kv {
namespace {

PagedStore::Spec buffer_spec(const HostedKeys::Spec& s) {
  PagedStore::Spec spec = s.whole;
  spec.layers = s.layers;
  spec.one_layer = true;
  spec.max_moves = 0;
  spec.prefix = "kv/ring";
  return spec;
}

}  // namespace

KeyStream::Buffer::Buffer(const PagedStore::Spec& spec, const Exec& exec, PagedStore& whole,
                          const PagedStore& in, int first, Range pages_apart)
    : store(spec, exec, whole, in, first),
      apart(pages_apart),
      held(static_cast<size_t>(spec.n_pages)) {
  if (!exec.on_gpu()) return;
  copied = std::make_unique<cuda::Event>();
  used = std::make_unique<cuda::Event>();
}

bool KeyStream::Buffer::is_apart(size_t page) const {
  return apart.begin <= static_cast<int>(page) && static_cast<int>(page) < apart.end;
}

void KeyStream::Buffer::lose_shared() {
  std::fill(held.begin(), held.begin() + apart.begin, uint8_t{0});
  std::fill(held.begin() + apart.end, held.end(), uint8_t{0});
}

KeyStream::KeyStream(const HostedKeys::Spec& spec, PagedStore& whole, HostedKeys& keys,
                     const Exec& exec)
    : layers_(spec.layers),
      keys_(keys),
      exec_(exec),
      wanted_(static_cast<size_t>(spec.whole.n_pages)) {
  if (exec.on_gpu()) copies_ = std::make_unique<cuda::Queue>(exec.queue->device());
  const int n = spec.whole.n_pages, spare = spec.spare_pages();
  const auto add = [&](int first, Range apart) {
    buffers_.push_back(
        std::make_unique<Buffer>(buffer_spec(spec), exec, whole, keys.prompt(), first, apart));
  };
  // Two keep the link busy: one is copied while another is attended.
  const bool single = n_layers() == 1;
  add(0, {0, single ? n : spare});
  if (!single) add(spare, {n - spare, n});
}

KeyStream::~KeyStream() {
  try {
    wait();  // copies run ahead of the last step
  } catch (const Error&) {
    // Nothing reads what they bring any more.
  }
}

void KeyStream::wait() const {
  if (copies_) cuda::wait(copies_->stream());
}

int KeyStream::place_of(int layer) const {
  const auto at = std::ranges::lower_bound(layers_, layer);
  TANDEM_CHECK(at != layers_.end() && *at == layer, "layer {} is not in host memory", layer);
  return static_cast<int>(at - layers_.begin());
}

void KeyStream::forget() {
  for (const auto& b : buffers_) b->place = -1;
}

void KeyStream::lend() {
  forget();
  if (!copies_) return;
  for (const auto& b : buffers_) exec_.queue->follow(*b->copied);
}

const PagedStore& KeyStream::acquire(int layer, const Step& step) {
  const int place = place_of(layer);
  const PagedStore& far = keys_.far();
  std::ranges::fill(wanted_, uint8_t{0});
  for (size_t b = 0; b < step.slot.size(); ++b) {
    TANDEM_CHECK(step.near_begin[b] % kPageTokens == 0,
                 "resident keys begin at token {}, which is no page boundary", step.near_begin[b]);
    for (int i = 0; i < step.near_begin[b] / kPageTokens; ++i)
      wanted_[static_cast<size_t>(far.page(step.slot[b], i))] = 1;
  }
  bring(place, Part::whole);
  // At the first layer both buffers begin to fill.
  if (place == 0 && buffers_.size() > 1) bring(1, Part::apart);
  Buffer& buffer = buffer_of(place);
  if (copies_) exec_.queue->follow(*buffer.copied);
  for (int b = 0; b < step.n_seqs; ++b) {
    const auto i = static_cast<size_t>(b);
    // On a GPU work under way may have moved the rows on, within the pages that they have.
    const auto room_of = [&](const PagedStore& store) {
      return static_cast<int>(store.pages(step.slot[i]).size()) * kPageTokens;
    };
    const int room = std::min(room_of(keys_.near()), room_of(buffer.store));
    const int rows_end = step.base[i] + step.tentative_of(b) + step.rows_of(b) + step.ahead;
    buffer.store.copy_layer_from(keys_.near(), layer, step.slot[i], step.near_begin[i],
                                 std::min(rows_end, room));
  }
  return buffer.store;
}

void KeyStream::release(int layer) {
  const auto n_buffers = static_cast<int>(buffers_.size());
  const int next = place_of(layer) + 1, later = place_of(layer) + n_buffers;
  // Of the next step where this one ends; it may want more pages by then.
  bring(next < n_layers() ? next : 0, Part::whole);
  bring(later < n_layers() ? later : later % n_buffers, Part::apart);
}

void KeyStream::bring(int place, Part part) {
  Buffer& to = buffer_of(place);
  if (to.place != place) std::ranges::fill(to.held, uint8_t{0});
  to.place = place;
  if (part == Part::whole)
    for (const auto& other : buffers_)
      if (other.get() != &to) other->lose_shared();
  const int layer = layers_[static_cast<size_t>(place)];
  const PagedStore& far = keys_.far();
  bool any = false;
  for (size_t first = 0, n = 0; first < wanted_.size(); first += std::max<size_t>(n, 1)) {
    const auto is_missing = [&](size_t page) {
      return wanted_[page] != 0 && to.held[page] == 0 && (part == Part::whole || to.is_apart(page));
    };
    // One copy for as many pages as follow each other, of one sequence or of several.
    for (n = 0; first + n < wanted_.size() && is_missing(first + n); ++n) to.held[first + n] = 1;
    if (n == 0) continue;
    if (copies_ && !any) {  // after all work so far on what the buffer had
      to.used->record(*exec_.queue);
      copies_->follow(*to.used);
    }
    any = true;
    const auto begin = static_cast<int64_t>(first), count = static_cast<int64_t>(n);
    const Tensor k = far.k(layer).slice(begin, count), v = far.v(layer).slice(begin, count);
    copy_bytes(to.store.k(layer).slice(begin, count), k, copies_.get());
    copy_bytes(to.store.v(layer).slice(begin, count), v, copies_.get());
    bytes_ += static_cast<double>(k.bytes() + v.bytes());
  }
  if (copies_ && any) to.copied->record(*copies_);
}

}  // namespace tandem::kv
