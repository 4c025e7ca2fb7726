#pragma once
#include <memory>

#include "ranks/group_comm.h"

namespace tandem::ranks {

/// Ranks that compute on CPUs: numbers go by TCP.
class HostComm final : public GroupComm {
 public:
  explicit HostComm(std::shared_ptr<Group> group) : GroupComm(std::move(group)) {}

  void sum(const Tensor& x, Stream /*stream*/) override {
    group_->sum({x.as<float>(), static_cast<size_t>(x.elements())});
  }
  void gather(void* all, size_t part_bytes, Stream /*stream*/) override {
    group_->gather(static_cast<std::byte*>(all), part_bytes);
  }
};

}  // namespace tandem::ranks
