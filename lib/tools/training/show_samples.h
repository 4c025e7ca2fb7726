#pragma once
#include <cstdint>

#include "cli/context.h"
#include "text/tokenizer.h"
#include "train/data/epoch.h"

namespace tandem::tools {

/// Writes the first `n` samples of an epoch as micro-batches have them: under a line for each
/// micro-batch and each document its text and ids, both with the supervised parts in [[ ]]. As JSON
/// lines, one a sample, {"ids", "supervised"} can be trained on as data again.
/// tokenizer   null: ids alone
void show_samples(cli::Context& cx, const train::Epoch& epoch, const train::Dataset& data,
                  const text::Tokenizer* tokenizer, int64_t n);

}  // namespace tandem::tools
