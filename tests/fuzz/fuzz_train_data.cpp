// Training data, as s2ft-train reads it for a model that has a tokenizer and a chat template:
// records, samples, micro-batches.
#include <numeric>

#include "source_dir.h"
#include "target.h"
#include "train/data/dataset.h"
#include "train/data/epoch.h"

namespace {

using namespace tandem;

void check(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// What holds for the micro-batches of any data.
void check_batches(const train::Dataset& data, train::BatchSettings settings, int32_t vocab) {
  std::vector<int32_t> all(static_cast<size_t>(data.size()));
  std::iota(all.begin(), all.end(), 0);
  for (const train::Batching batching :
       {train::Batching::pad, train::Batching::varlen, train::Batching::pack}) {
    settings.batching = batching;
    int64_t samples = 0, targets = 0;
    for (const train::MicroPlan& plan : train::divide(data, all, settings)) {
      const train::MicroBatch batch = train::make_micro_batch(data, plan);
      const auto rows = static_cast<int64_t>(batch.tokens.size());
      check(rows <= settings.micro_tokens.value, "a micro-batch beyond its limit");
      check(batch.targets.size() == batch.tokens.size(), "rows without a target");
      check(batch.document_begin.size() == plan.samples.size() + 1 &&
                batch.document_begin.back() == rows,
            "documents that are not the rows");
      for (const int32_t id : batch.tokens) check(id >= 0 && id < vocab, "a token out of range");
      for (const int32_t id : batch.targets) {
        check(id >= -1 && id < vocab, "a target out of range");
        targets += id >= 0;
      }
      samples += static_cast<int64_t>(plan.samples.size());
    }
    check(samples == data.size(), "samples that were lost");
    check(targets == data.counts().supervised, "targets that were lost");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  static const auto folder = test::source_dir() / "recipes/models/tiny-2m";
  static const auto tokenizer = text::load_tokenizer(folder);
  static const train::SampleEncoder encoder({}, tokenizer.get(), folder, tokenizer->vocab_size());
  train::BatchSettings settings;
  settings.max_tokens = {24};
  settings.micro_tokens = {40};
  return fuzz::run(ErrorKind::input, [&] {
    const auto records =
        train::parse_records(fuzz::as_text(input, size), train::RecordForm::automatic, "fuzz");
    const train::Dataset data(records, encoder, settings);
    check_batches(data, settings, tokenizer->vocab_size());
  });
}
