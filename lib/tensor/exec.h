#pragma once
#include "tensor/comm.h"
#include "tensor/cuda.h"

namespace tandem {

/// Where a run computes: the CPU, or one GPU and the queue that its work goes to; and with whom.
struct Exec {
  cuda::Queue* queue = nullptr;  // null on the CPU; outlives what computes on it
  Comm* comm = nullptr;          // the ranks that each compute a part; null: the run has one

  bool on_gpu() const { return queue != nullptr; }
  Device device() const {
    return on_gpu() ? Device{Device::Kind::cuda, queue->device()} : Device{};
  }
  Stream stream() const { return on_gpu() ? queue->stream() : Stream{}; }
};

}  // namespace tandem
