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

}  // namespace tandem::ranks
