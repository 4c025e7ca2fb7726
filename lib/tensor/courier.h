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
/// waits for the one that used its buffers before. On the CPU host and device memory are one
/// and nothing is copied.
class Courier {
 public:
  struct Spec {
    std::string name;      // of its items in a memory plan
    size_t in_bytes = 0;   // of a parcel, multiples of Outbox::kAlignment
    size_t out_bytes = 0;  // of results
    int turns = 1;         // parcels on their way at once; work recorded in graphs needs 1
    /// Whether each turn's parcel has a separate place on the device. Else all have the same, for
    /// graphs: work that reads a parcel must then be on the queue before the next is sent.
    bool own_places = false;
  };
  static void plan(const Spec& spec, Device device, MemoryPlan& plan);
  Courier(Spec spec, Arena& arena, const Exec& exec);

  /// Begins a parcel; what is taken from the outbox goes with it. With one turn, results lie at
  /// Outbox::end() on both sides: one copy may take the last parts of a parcel along.
  Outbox& open();
  /// Copies the open parcel to the device.
  void send();

  /// Where results are written on the device.
  std::byte* results() const { return results_; }
  /// Copies the first bytes of the results to the host. Returns a receipt for `wait`.
  int fetch(size_t bytes);
  /// The host's copy of fetched results, valid for `turns` fetches.
  /// errors   kind device
  std::byte* wait(int receipt);

 private:
  struct Turn {
    std::unique_ptr<cuda::PinnedBuffer> pinned;  // a parcel, then results
    std::unique_ptr<cuda::Event> sent, fetched;
    Outbox outbox;
  };

  Spec spec_;
  Exec exec_;
  std::byte* results_ = nullptr;
  std::vector<Turn> turns_;
  size_t next_in_ = 0, open_ = 0, next_out_ = 0;
};

}  // namespace tandem
