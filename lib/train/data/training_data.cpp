#include "train/data/training_data.h"

#include <numeric>
#include <tuple>

#include "base/error.h"
#include "train/data/epoch.h"

namespace tandem::train {
namespace {

std::vector<int32_t> all_of(const Dataset& data) {
  std::vector<int32_t> all(static_cast<size_t>(data.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TrainingData load_training_data(const DataSettings& settings, const BatchSettings& batches,
                                const SampleEncoder& encoder, uint64_t seed,
                                const RecordProgress& progress) {
  const auto load = [&](const std::filesystem::path& path) {
    Dataset data(read_records(path, settings.form), encoder, batches, progress);
    if (const DatasetCounts& c = data.counts(); c.samples == 0)
      throw input_error(path.string(),
                        "none of {} records can be learned: {} lack an answer, {} are too long, {} "
                        "have an answer that begins beyond train.max_tokens",
                        c.records, c.unsupervised, c.too_long, c.answer_cut)
          .hint("check the keys of the records, or raise train.max_tokens");
    return data;
  };
  TrainingData all{.data = load(settings.path), .val_data = {}, .train = {}, .val = {}};
  if (settings.val_size) {
    std::tie(all.train, all.val) = split_validation(all.data.size(), *settings.val_size, seed);
    return all;
  }
  all.train = all_of(all.data);
  if (!settings.val_path.empty()) {
    all.val_data = load(settings.val_path);
    all.val = all_of(all.val_data);
  }
  return all;
}

}  // namespace tandem::train
