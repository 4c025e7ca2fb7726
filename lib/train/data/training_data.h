#pragma once
#include <cstdint>
#include <vector>

#include "train/data/dataset.h"
#include "train/data/sample_encoder.h"
#include "train/data/settings.h"

namespace tandem::train {

/// The data of a run, as section `data` names it.
struct TrainingData {
  Dataset data;
  Dataset val_data;                 // of data.val_path, else empty
  std::vector<int32_t> train, val;  // samples of `data`, of `validation()`

  const Dataset& validation() const { return val_data.size() > 0 ? val_data : data; }
};

/// Reads and encodes it. data.val_size samples are drawn by the seed.
/// errors   as read_records, Dataset and split_validation; kind input: no sample in a file
TrainingData load_training_data(const DataSettings& settings, const BatchSettings& batches,
                                const SampleEncoder& encoder, uint64_t seed,
                                const RecordProgress& progress = {});

}  // namespace tandem::train
