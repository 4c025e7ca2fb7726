#pragma once
#include <memory>
#include <utility>

#include "ranks/group.h"
#include "tensor/comm.h"

namespace tandem::ranks {

/// What ranks on any device have in common: numbers of the host go through their group.
class GroupComm : public Comm {
 public:
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  double sum_of(double mine) override { return group_->sum_of(mine); }
  double of_rank0(double mine) override { return group_->agree(mine); }
  void gather_on_host(std::byte* all, size_t part_bytes) override {
    group_->gather(all, part_bytes);
  }

 protected:
  explicit GroupComm(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  std::shared_ptr<Group> group_;
};

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
