#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "decode/model_files.h"
#include "tensor/tensor.h"

namespace tandem::speculate {

/// Both models must mean the same by every id: a draft of another vocabulary would only ever be
/// rejected. Where one has more rows than the other, the rows beyond must be padding: ids without a
/// token.
/// where    the key of the draft, for errors
/// errors   kind input at `where`: tokens that differ; sizes that differ without tokenizers that tell
///          why
void check_vocabularies(const decode::ModelFiles& target, const decode::ModelFiles& draft,
                        const std::string& where = "spec.draft.path");

/// A draft's logits as rows of the target's vocabulary: a token that only the draft has is left out
/// of the distribution that children are drawn from, one that it lacks has no chance in it.
/// shapes   logits [rows, *] f32 on the host; result [rows, vocab], in `buffer` unless they fit as they are
Tensor in_vocabulary(const Tensor& logits, int vocab, std::vector<float>& buffer);

/// The ids as a draft may read them: one that it lacks, of the target's padding, becomes 0. What
/// follows such a token is proposed badly, and rejected.
std::vector<int32_t> known_ids(std::span<const int32_t> ids, int draft_vocab);

}  // namespace tandem::speculate
