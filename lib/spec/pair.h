#pragma once
#include "decode/model_files.h"

namespace tandem::spec {

/// Both models must mean the same by every id: a draft of another vocabulary would only ever be rejected.
/// errors   kind input at draft.path: sizes or tokens that differ
void check_vocabularies(const decode::ModelFiles& target, const decode::ModelFiles& draft);

}  // namespace tandem::spec
