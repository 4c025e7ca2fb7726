#include "train/data/epoch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace tandem::train {
namespace {

// Streams of random numbers: the split, then one an epoch.
constexpr uint32_t kSplitStream = 0, kFirstEpochStream = 1;

constexpr int32_t kPadTo = 8;  // rows of padded samples, as other programs have them

/// A random order of 0 .. n - 1 (Fisher and Yates).
std::vector<int32_t> permutation(int32_t n, uint64_t seed, uint32_t stream) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  PhiloxStream draw(seed, stream);
  for (auto i = static_cast<uint32_t>(n); i > 1; --i) std::swap(order[i - 1], order[draw.below(i)]);
  return order;
}

/// Micro-batches that are being filled.
class Filling {
 public:
  Filling(const Dataset& data, const BatchSettings& settings)
      : data_(data),
        most_rows_(settings.micro_tokens.value),
        most_samples_(static_cast<size_t>(settings.most_samples())),
        pads_(settings.batching == Batching::pad) {}

  /// Rows of a micro-batch with one sample more.
  int64_t rows_with(size_t i, int32_t sample) const {
    const int32_t rows = data_[sample].rows();
    if (!pads_) return rows_[i] + rows;
    return int64_t{padded(std::max(longest_[i], rows))} *
           static_cast<int64_t>(plans_[i].samples.size() + 1);
  }
  bool has_room(size_t i, int32_t sample) const {
    return plans_[i].samples.size() < most_samples_ && rows_with(i, sample) <= most_rows_;
  }
  void add(size_t i, int32_t sample) {
    rows_[i] = rows_with(i, sample);
    longest_[i] = std::max(longest_[i], data_[sample].rows());
    plans_[i].samples.push_back(sample);
  }
  void add_to_new(int32_t sample) {
    plans_.emplace_back();
    rows_.push_back(0);
    longest_.push_back(0);
    add(plans_.size() - 1, sample);
  }
  size_t size() const { return plans_.size(); }
  int64_t rows(size_t i) const { return rows_[i]; }

  std::vector<MicroPlan> take() {
    for (size_t i = 0; pads_ && i < plans_.size(); ++i) plans_[i].padded_rows = padded(longest_[i]);
    return std::move(plans_);
  }

 private:
  /// A sample alone always fits, which rounding up must not change.
  int32_t padded(int32_t rows) const {
    const int64_t up = (int64_t{rows} + kPadTo - 1) / kPadTo * kPadTo;
    return static_cast<int32_t>(std::max<int64_t>(rows, std::min(up, most_rows_)));
  }

  const Dataset& data_;
  int64_t most_rows_;
  size_t most_samples_;
  bool pads_;
  std::vector<MicroPlan> plans_;
  std::vector<int64_t> rows_;     // of each, with padding
  std::vector<int32_t> longest_;  // sample of each
};

}  // namespace

std::vector<int32_t> shuffled(int32_t n, uint64_t seed, int64_t epoch) {
  return permutation(n, seed, kFirstEpochStream + static_cast<uint32_t>(epoch));
}

std::pair<std::vector<int32_t>, std::vector<int32_t>> split_validation(int32_t n, int64_t n_val,
                                                                       uint64_t seed) {
  if (n_val >= n)
    throw recipe_error("data.val_size", "takes {} samples of {}, which leaves none for training",
                       n_val, n)
        .hint("lower data.val_size, or set data.val_path to a file");
  const auto order = permutation(n, seed, kSplitStream);
  const auto middle = order.begin() + n_val;
  std::vector<int32_t> val(order.begin(), middle), train(middle, order.end());
  std::ranges::sort(val);
  std::ranges::sort(train);
  return {std::move(train), std::move(val)};
}

std::vector<MicroPlan> divide(const Dataset& data, std::span<const int32_t> samples,
                              const BatchSettings& settings) {
  Filling filling(data, settings);
  if (settings.batching != Batching::pack) {
    for (const int32_t sample : samples)
      if (filling.size() > 0 && filling.has_room(filling.size() - 1, sample))
        filling.add(filling.size() - 1, sample);
      else
        filling.add_to_new(sample);
    return filling.take();
  }
  std::vector<int32_t> longest_first(samples.begin(), samples.end());
  std::ranges::stable_sort(longest_first, std::greater{},
                           [&](int32_t sample) { return data[sample].rows(); });
  for (const int32_t sample : longest_first) {
    size_t fullest = filling.size();
    for (size_t i = 0; i < filling.size(); ++i)
      if (filling.has_room(i, sample) &&
          (fullest == filling.size() || filling.rows(i) > filling.rows(fullest)))
        fullest = i;
    if (fullest < filling.size())
      filling.add(fullest, sample);
    else
      filling.add_to_new(sample);
  }
  return filling.take();
}

MicroBatch make_micro_batch(const Dataset& data, const MicroPlan& plan) {
  MicroBatch batch;
  batch.document_begin.push_back(0);
  for (const int32_t i : plan.samples) {
    const SampleView sample = data[i];
    const auto begin = static_cast<size_t>(batch.document_begin.back());
    const auto rows = static_cast<size_t>(std::max(sample.rows(), plan.padded_rows));
    batch.tokens.insert(batch.tokens.end(), sample.ids.begin(), sample.ids.end() - 1);
    batch.tokens.resize(begin + rows, 0);
    batch.targets.resize(begin + rows, -1);
    for (const TokenSpan& span : sample.supervised)
      for (auto t = static_cast<size_t>(span.begin); t < static_cast<size_t>(span.end); ++t)
        batch.targets[begin + t - 1] = sample.ids[t];
    batch.document_begin.push_back(static_cast<int32_t>(batch.tokens.size()));
  }
  return batch;
}

Epoch::Epoch(const Dataset& data, std::span<const int32_t> samples, const BatchSettings& settings,
             uint64_t seed, int64_t epoch)
    : data_(data),
      settings_(settings),
      order_(shuffled(static_cast<int32_t>(samples.size()), seed, epoch)) {
  for (int32_t& i : order_) i = samples[static_cast<size_t>(i)];
}

int64_t Epoch::n_steps(int64_t n_samples, const BatchSettings& settings) {
  const int64_t full = n_samples / settings.batch;
  const bool rest = n_samples % settings.batch != 0;
  return full + (rest && (!settings.drop_last || full == 0) ? 1 : 0);
}

std::span<const int32_t> Epoch::samples(int64_t step) const {
  const auto begin = static_cast<size_t>(step) * static_cast<size_t>(settings_.batch);
  const size_t n = std::min(static_cast<size_t>(settings_.batch), order_.size() - begin);
  return std::span(order_).subspan(begin, n);
}

int64_t Epoch::n_supervised(int64_t step) const {
  int64_t n = 0;
  for (const int32_t sample : samples(step)) n += data_[sample].n_supervised();
  return n;
}

EpochCounts count(const Epoch& epoch, const Dataset& data) {
  EpochCounts counts{.steps = epoch.n_steps()};
  for (int64_t step = 0; step < counts.steps; ++step) {
    counts.supervised += epoch.n_supervised(step);
    for (const MicroPlan& plan : epoch.step(step)) {
      int64_t rows = 0, padded = 0;
      for (const int32_t sample : plan.samples) {
        rows += data[sample].rows();
        padded += std::max(data[sample].rows(), plan.padded_rows);
      }
      ++counts.micro_batches;
      counts.samples += static_cast<int64_t>(plan.samples.size());
      counts.rows += rows;
      counts.padded_rows += padded;
      counts.most_rows = std::max(counts.most_rows, padded);
      counts.most_samples =
          std::max(counts.most_samples, static_cast<int64_t>(plan.samples.size()));
    }
  }
  return counts;
}

}  // namespace tandem::train
