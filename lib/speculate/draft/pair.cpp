#include "speculate/draft/pair.h"

#include <algorithm>

#include "base/error.h"
#include "ops/sampling.h"

namespace tandem::speculate {
namespace {

constexpr const char* kHint =
    "choose a draft model that was trained with the tokenizer of the target";

/// Rows from `n` on must mean nothing.
void check_padding(const decode::ModelFiles& model, int n, const decode::ModelFiles& other,
                   const std::string& where) {
  for (int32_t id = n; id < model.config.vocab_size; ++id)
    if (!model.tokenizer->token_bytes(id).empty())
      throw input_error(where, "token {} of {} does not exist in {}, which has {} tokens", id,
                        model.name, other.name, n)
          .hint(kHint);
}

}  // namespace

void check_vocabularies(const decode::ModelFiles& target, const decode::ModelFiles& draft,
                        const std::string& where) {
  const int n = std::min(target.config.vocab_size, draft.config.vocab_size);
  const bool told = target.tokenizer && draft.tokenizer;
  if (draft.config.vocab_size != target.config.vocab_size && !told)
    throw input_error(where, "{} has {} tokens, {} has {}", draft.name, draft.config.vocab_size,
                      target.name, target.config.vocab_size)
        .hint(kHint);
  if (!told) return;
  for (int32_t id = 0; id < n; ++id)
    if (target.tokenizer->token_bytes(id) != draft.tokenizer->token_bytes(id))
      throw input_error(where, "token {} of {} differs from the token of {}", id, draft.name,
                        target.name)
          .hint(kHint);
  check_padding(target, n, draft, where);
  check_padding(draft, n, target, where);
}

Tensor in_vocabulary(const Tensor& logits, int vocab, std::vector<float>& buffer) {
  if (logits.row_size() == vocab) return logits;
  buffer.resize(static_cast<size_t>(logits.rows() * vocab));
  ops::widen_rows({.out = buffer.data(),
                   .in = logits.as<float>(),
                   .n_rows = static_cast<int>(logits.rows()),
                   .from = static_cast<int>(logits.row_size()),
                   .to = vocab},
                  Stream{});
  return {buffer.data(), DType::f32, {logits.rows(), vocab}};
}

std::vector<int32_t> known_ids(std::span<const int32_t> ids, int draft_vocab) {
  std::vector<int32_t> known(ids.begin(), ids.end());
  std::ranges::replace_if(
      known, [&](int32_t id) { return id >= draft_vocab; }, 0);
  return known;
}

}  // namespace tandem::speculate
