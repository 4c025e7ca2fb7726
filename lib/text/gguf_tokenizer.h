#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "io/gguf_write.h"
#include "text/tokenizer.h"

namespace tandem::text {

/// Values of key `tokenizer.ggml.token_type`.
enum TokenType : int32_t { kUndefined, kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

/// The names that key `tokenizer.ggml.pre` gives to ways of cutting text into words.
/// ignores_merges  ways that take a word as one token if the vocabulary has it
std::vector<std::string_view> gguf_word_rules(bool ignores_merges);

/// Adds end-of-text ids, which GGUF has three keys for: the others are found by their text.
void add_end_ids(io::GgufWriter& to, std::span<const int> ids);

/// Adds the tokenizer of a model folder and its chat template to the metadata of a GGUF file.
/// The name of the word rule is the first with which the file gives the ids of sample texts.
/// rows     rows of the embedding: as many tokens are listed
/// ends     end-of-text ids
/// errors   kind input: a tokenizer that is neither byte-level BPE nor SentencePiece BPE, or whose
///          ids no word rule of GGUF gives
void add_tokenizer(io::GgufWriter& to, const std::filesystem::path& folder,
                   const Tokenizer& tokenizer, int32_t rows, std::span<const int> ends);

}  // namespace tandem::text
