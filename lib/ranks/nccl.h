#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/types.h"

namespace tandem::ranks {

/// NCCL, loaded when GPUs of several ranks need it: nothing links it.
class Nccl {
 public:
  using Id = std::array<std::byte, 128>;
  /// errors   kind device: not installed, and what to install; or it fails
  static Id new_id();

  /// All ranks at once, each with its GPU in use by the thread.
  Nccl(const Id& id, int rank, int n_ranks);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  /// x [n] becomes the ranks' sum, as work on the stream.
  void sum(float* x, int64_t n, Stream stream);
  /// Parts [n_ranks][bytes] to all, with the own one in its place.
  void gather(void* all, size_t bytes, Stream stream);
  /// `2.27.3`
  static std::string version();

 private:
  void* comm_ = nullptr;
  int rank_;
};

}  // namespace tandem::ranks
