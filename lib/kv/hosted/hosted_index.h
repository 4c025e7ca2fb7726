#pragma once
#include <string>
#include <vector>

#include "tensor/exec.h"

namespace tandem::kv {

class HostedKeys;
class PagedStore;
struct Step;

/// A policy's part in a KV cache that lies in host memory (kv/hosted/hosted_keys.h): as the first
/// reader, whose keys lie there, or as a further one, which has copies of some.
class HostedIndex {
 public:
  virtual ~HostedIndex() = default;
  /// The layers whose keys lie in host memory, rising; of a further reader none.
  virtual std::vector<int> hosted_layers() const { return {}; }
  /// The first token of a slot that ranges of these layers read.
  virtual int range_begin(int slot) const = 0;
  /// Most tokens that they read, of a further reader with those that it has copies of.
  virtual int most_ranged() const = 0;
  /// Connects it with the keys, after Policy::set_up.
  /// reader   this policy among those of the run, 0 the first
  /// prompts  where prompts are read
  virtual void read_hosted(HostedKeys&, int /*reader*/, const Exec& /*prompts*/) {}
  /// A prompt of `length` tokens that ends has gone through a layer, whose keys are in the store;
  /// the other layers follow in their order, and then on_prompt, or on_give_up where the prompt is
  /// given up. Its tokens are not committed yet. May be called by another thread, while nothing
  /// else is.
  virtual void on_layer(int /*layer*/, int /*slot*/, int /*length*/, const PagedStore&) {}
  /// Drops what on_layer has made of the slot's prompt, and makes nothing in its place.
  virtual void on_give_up(int /*slot*/) {}
  /// True: on_layer takes keys where prompts are read, in the order of the queue there, from the
  /// store of prompts, which has one layer. False: from host memory.
  virtual bool takes_read_prompts() const { return true; }
  /// A step of another reading, one of all keys, has attended a layer of Bounds::far_layers: the
  /// store has the keys of all tokens that its rows see, until the call ends; on a GPU, in its
  /// queue's order. The layers come in their order.
  virtual void on_pass(int /*layer*/, const Step&, const PagedStore&) {}
  /// Names of buffers, as Policy::plan has them, that are pinned since a GPU copies to them.
  virtual std::vector<std::string> pinned(const std::string& /*prefix*/) const { return {}; }
  /// The reason why memory is not pinned although a GPU copies to it, which makes copies slower;
  /// empty where it is.
  virtual std::string why_unpinned() const { return {}; }
  /// Bytes of the index that one new token of a sequence of `length` tokens reads in a layer to
  /// choose its keys, all heads, and scores of keys that it computes from them: expected.
  struct Choosing {
    double bytes = 0, scores = 0;
  };
  virtual Choosing choosing(int /*layer*/, int /*length*/) const { return {}; }
};

}  // namespace tandem::kv
