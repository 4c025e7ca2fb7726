#include "train/gradient_sum.h"

#include <utility>

namespace tandem::train {

std::vector<GradientBucket> gradient_buckets(const TrainedSet& set, int64_t least) {
  std::vector<GradientBucket> all;
  const auto add = [&](int complete_with, int64_t begin, int64_t end) {
    if (end > begin) all.push_back({complete_with, begin, end});
  };
  const auto n_layers = static_cast<int>(set.layers.size());
  // A head that is the embedding too is complete with the pass.
  const bool tied = set.embedding.trained() && set.embedding.offset == set.lm_head.offset;
  const int64_t head = set.lm_head.offset, rest = tied ? head : set.embedding.offset;
  add(n_layers, head, rest);
  int64_t end = head;
  for (int i = n_layers; i-- > 0;) {
    const int64_t begin = set.layers[static_cast<size_t>(i)][Role::qkv].offset;
    if (i > 0 && end - begin < least) continue;
    add(i, begin, end);
    end = begin;
  }
  add(-1, rest, set.size);
  return all;
}

GradientSum::GradientSum(std::shared_ptr<Comm> comm, std::vector<GradientBucket> buckets,
                         cuda::Queue* queue)
    : comm_(std::move(comm)), buckets_(std::move(buckets)), queue_(queue) {
  if (queue_ == nullptr) return;
  own_queue_ = std::make_unique<cuda::Queue>(queue_->device());
  event_.emplace();
}

void GradientSum::begin(std::span<float> gradient) {
  gradient_ = gradient;
  next_ = 0;
}

void GradientSum::complete(int layer) {
  for (; next_ < buckets_.size() && buckets_[next_].complete_with >= layer; ++next_) {
    const GradientBucket& bucket = buckets_[next_];
    if (queue_ != nullptr) {
      event_->record(*queue_);
      own_queue_->follow(*event_);
    }
    const Device device =
        queue_ != nullptr ? Device{Device::Kind::cuda, queue_->device()} : Device{};
    comm_->sum({gradient_.data() + bucket.begin, DType::f32, {bucket.end - bucket.begin}, device},
               own_queue_ ? own_queue_->stream() : Stream{});
  }
}

void GradientSum::finish() {
  complete(-1);
  if (queue_ == nullptr) return;
  event_->record(*own_queue_);
  queue_->follow(*event_);
}

}  // namespace tandem::train
