#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace tandem::model {

/// The layers of a model that live in host memory when `n_streamed` of them do, in rising order.
/// They are spread evenly: a resident layer that computes longer than others take to copy then
/// fills the buffers for the layers after it, and none waits for a whole run of copies. The first
/// is among them, since its copy costs nothing while logits, draws or a draft follow a forward.
/// shapes   n_streamed in [0, n_layers]
std::vector<int> streamed_layers(int n_layers, int n_streamed);

/// How many blocks' worth of GPU memory weights pass through. Two keep the link busy: one is being
/// copied while another is used, and a third would only take the place of resident weights, which
/// save a copy in every forward where the third buffer saves at most as much waiting.
int ring_buffers(int n_blocks);

/// What a forward reads of an FFN whose channels are divided in a set and the rest.
enum class ReadKind : uint8_t { all, set };

/// The order in which blocks of weights pass through a ring of buffers, forward after forward: a
/// block is used, then its buffer gets one that is used later, perhaps in the next forward. Which
/// kind that will be is guessed: what followed the last forward of all weights, and as many
/// forwards of sets as in the last run of them.
class LayerRing {
 public:
  /// all, set   blocks that a forward of each kind uses, in order; those of sets are among all
  LayerRing(std::vector<int> all, std::vector<int> set);

  /// A forward begins.
  /// returns  whether the buffers hold, or get, what it uses first; if not, all are to be filled:
  ///          held() says by what
  bool begin(ReadKind kind);
  /// From the first block of a forward in the first buffer; as begin where that is false.
  void restart(ReadKind kind);
  /// The block that is used next, and the buffer that holds it.
  int block() const { return held_.front().block; }
  int buffer() const { return static_cast<int>(used_ % n_buffers_); }
  /// Blocks in the buffers after one another, from the one that is used next on.
  std::vector<int> held() const;
  /// The block in buffer() has been used.
  /// returns  the block that goes there
  int advance();
  int n_buffers() const { return n_buffers_; }

 private:
  /// A forward, now or later, and which of its blocks.
  struct Place {
    ReadKind kind = ReadKind::all;
    int n_sets = 0;  // forwards of sets in a row, up to this one
    size_t at = 0;
  };
  struct Held {
    int block;
    ReadKind kind;
    size_t at;
  };
  const std::vector<int>& order(ReadKind kind) const { return kind == ReadKind::all ? all_ : set_; }
  /// The forward after it, as things went last time.
  Place guess_next(const Place& place) const;
  /// Takes the block at next_ and moves that on.
  void hold_next();

  std::vector<int> all_, set_;
  int n_buffers_;
  int64_t used_ = 0;
  std::deque<Held> held_;
  Place next_;  // to be held
  Place now_;   // the forward under way
  ReadKind after_all_ = ReadKind::all;
  int last_sets_ = 1;  // forwards of sets in the last run of them
};

}  // namespace tandem::model
