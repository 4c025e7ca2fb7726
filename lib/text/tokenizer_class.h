#pragma once
#include <cstdint>
#include <string>

#include "text/bpe_tokenizer.h"
#include "text/tokenizer_config.h"

namespace tandem::text {

/// Classes of transformers 5 that take only vocabulary, merges and post-processor from the files
/// and build all else from flags; `from_file` follows the files.
enum class TokenizerClass : uint8_t { from_file, llama, code_llama, gpt2, qwen2, gemma };

/// The class that AutoTokenizer chooses for a model folder.
/// byte_level  tokenizer.json has a ByteLevel step
TokenizerClass class_of(const TokenizerConfig& config, bool byte_level);

bool is_byte_level(TokenizerClass tokenizer_class);

/// `config` with the special tokens that the class assumes where the files name none.
TokenizerConfig with_class_tokens(TokenizerConfig config, TokenizerClass tokenizer_class);

/// Replaces how `spec` normalises, cuts and encodes text by the rules of the class.
void apply_class(BpeSpec& spec, TokenizerClass tokenizer_class, const TokenizerConfig& config,
                 const std::string& where);

}  // namespace tandem::text
