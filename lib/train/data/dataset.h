#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "train/data/records.h"
#include "train/data/sample.h"
#include "train/data/sample_encoder.h"
#include "train/data/settings.h"

namespace tandem::train {

/// A sample of a dataset. Of its n tokens a forward reads the first n - 1; the last one is only
/// predicted.
struct SampleView {
  std::span<const int32_t> ids;           // at least 2
  std::span<const TokenSpan> supervised;  // at least 1

  int32_t rows() const { return static_cast<int32_t>(ids.size()) - 1; }
  int64_t n_supervised() const { return n_tokens(supervised); }
};

/// What became of the records of a file.
struct DatasetCounts {
  int64_t records = 0, samples = 0;
  int64_t rows = 0;          // tokens that forwards read, an epoch
  int64_t supervised = 0;    // tokens that the loss counts, an epoch
  int64_t truncated = 0;     // samples cut to train.max_tokens
  int64_t too_long = 0;      // dropped by train.overlong
  int64_t unsupervised = 0;  // dropped: no answer, or none to be learned
  int64_t answer_cut = 0;    // dropped: the answer begins beyond train.max_tokens
  int64_t doubled = 0;       // samples that begin with BOS twice
  int64_t endless = 0;       // samples, whole ones, whose answer does not end with a control token
};

/// Asked now and then with the number of records that are done, of all; false ends the work.
using RecordProgress = std::function<bool(int64_t done, int64_t all)>;

/// Encoded samples, in the order of their records.
class Dataset {
 public:
  Dataset() = default;
  /// Encodes records on all threads. Texts are cut into pieces of train.max_tokens tokens, each
  /// with the tokenizer's prefix, as pig-eval cuts them.
  /// errors   kind input: as SampleEncoder::encode; a record that is too long (train.overlong
  ///          error); kind interrupted
  Dataset(std::span<const Record> records, const SampleEncoder& encoder,
          const BatchSettings& batches, const RecordProgress& progress = {});

  int32_t size() const { return static_cast<int32_t>(records_.size()); }
  SampleView operator[](int32_t i) const;
  /// The record of a sample, as errors name it: "train.jsonl:12".
  const std::string& where(int32_t i) const {
    return where_[static_cast<size_t>(records_[static_cast<size_t>(i)])];
  }
  const DatasetCounts& counts() const { return counts_; }
  int32_t longest_rows() const { return longest_rows_; }
  /// SHA-256 of all tokens and supervised spans: a resumed run asks for the same.
  std::string fingerprint() const;

 private:
  struct Encoded;
  static Encoded encode(const Record& record, const SampleEncoder& encoder,
                        const BatchSettings& batches);
  void add(const Encoded& encoded, int32_t record);

  std::vector<std::string> where_;  // of each record
  std::vector<int32_t> ids_, records_;
  std::vector<TokenSpan> spans_;
  std::vector<size_t> id_begin_ = {0}, span_begin_ = {0};  // [samples + 1]
  DatasetCounts counts_;
  int32_t longest_rows_ = 0;
};

}  // namespace tandem::train
