#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tensor/arena.h"
#include "tensor/exec.h"
#include "tensor/outbox.h"

namespace tandem {

/// Pinned transfers between the host and a GPU, in the order of its queue: parcels in, results out.
/// Several parcels may be on their way, each in separate pinned buffers; a parcel that is opened
/// waits for the one that used its buffers before, if `send` copied that: a caller whose graph
/// copies by itself opens a turn's parcel when the work of the last one is over. On the CPU host
/// and device memory are one and nothing is copied.
class Courier {
 public:
  struct Spec {
    std::string name;      // of its items in a memory plan
    size_t in_bytes = 0;   // of a parcel, multiples of Outbox::kAlignment
    size_t out_bytes = 0;  // of results
    int turns = 1;         // parcels on their way at once; see turn_step for work in graphs
    /// Whether each turn's parcel has a separate place on the device. Else all have the same, for
    /// graphs: work that reads a parcel must then be on the queue before the next is sent.
    bool own_places = false;

    size_t turn_bytes() const { return in_bytes + Outbox::aligned(out_bytes); }
  };
  static void plan(const Spec& spec, Device device, MemoryPlan& plan);
  Courier(Spec spec, Arena& arena, const Exec& exec);

  /// Begins a parcel; what is taken from the outbox goes with it. With a place for each turn, or
  /// for one alone, results lie at Outbox::end() on both sides: one copy may take the last parts of
  /// a parcel along.
  Outbox& open();
  /// The next parcel is one of the first turn again; none may be on its way.
  void restart() { next_in_ = 0; }
  /// Copies the open parcel to the device.
  void send();
  /// On a GPU, bytes on the host from the place of one turn to that of the next: work in a graph
  /// that copies by itself is recorded for the first turn's place and adds this by turns.
  size_t turn_step() const { return spec_.turn_bytes(); }
  /// The host's place of the first turn that corresponds to `at` in the open parcel or its results.
  template <class T>
  T* in_first_turn(T* at) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(at) -
                                static_cast<ptrdiff_t>(open_ * turn_step()));
  }

  /// Where results are written on the device, of a courier that has one place there.
  std::byte* results() const { return results_; }
  /// Copies the first bytes of the results to the host. Returns a receipt for `wait`.
  int fetch(size_t bytes);
  /// The host's copy of fetched results, valid for `turns` fetches.
  /// errors   kind device
  std::byte* wait(int receipt);

 private:
  struct Turn {
    std::byte* host = nullptr;  // a parcel, then results
    std::unique_ptr<cuda::Event> sent, fetched;
    Outbox outbox;
  };

  Spec spec_;
  Exec exec_;
  std::unique_ptr<cuda::PinnedBuffer> pinned_;  // [turns], on a GPU
  std::byte* results_ = nullptr;
  std::vector<Turn> turns_;
  size_t next_in_ = 0, open_ = 0, next_out_ = 0;
};

}  // namespace tandem
