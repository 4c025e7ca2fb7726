#include "spec/pair.h"

#include "base/error.h"

namespace tandem::spec {

void check_vocabularies(const decode::ModelFiles& target, const decode::ModelFiles& draft) {
  const int n = target.config.vocab_size;
  if (draft.config.vocab_size != n)
    throw input_error("draft.path", "{} has {} tokens, {} has {}", draft.name,
                      draft.config.vocab_size, target.name, n)
        .hint("take a draft model that was trained with the tokenizer of the target");
  if (!target.tokenizer || !draft.tokenizer) return;
  for (int32_t id = 0; id < n; ++id)
    if (target.tokenizer->token_bytes(id) != draft.tokenizer->token_bytes(id))
      throw input_error("draft.path", "token {} of {} is another one than that of {}", id,
                        draft.name, target.name)
          .hint("take a draft model that was trained with the tokenizer of the target");
}

}  // namespace tandem::spec
