#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tandem::text {

/// The units that merging starts from, and so the spelling of pieces in the file.
enum class BpeAlphabet : uint8_t {
  bytes,       // GPT-2's table of printable characters, one a byte
  characters,  // U+2581 for a space, <0x0A> for a byte of a character that has no piece
};

/// Where a space is put in front of text that does not begin with one.
enum class SpacePrefix : uint8_t { none, first_part, every_part, every_word };

/// Everything that defines a BPE tokenizer, as read from files.
struct BpeSpec {
  BpeAlphabet alphabet = BpeAlphabet::bytes;
  std::vector<std::pair<std::string, int32_t>> vocab;       // as spelled in the file
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  SpacePrefix space_prefix = SpacePrefix::none;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;  // a word that is a piece as a whole is not merged up
  bool byte_fallback = false;  // alphabet characters only
  bool fuse_unk = false;       // neighbouring unknown units become one unknown token
  std::string unk_token;       // empty for none
  std::vector<int32_t> prefix;
  std::optional<int32_t> bos, eos;
  bool drops_leading_space = false;
  bool splits_special = false;  // special tokens in a text are ordinary text
};

/// errors   kind input at `where`: two pieces with one id, a piece with two ids, ids that leave
///          large gaps, merges of or into unknown pieces
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec, const std::string& where);

/// Adds tokens that the configuration knows and the file does not list, and marks its special ones.
/// A special token that has no id yet gets the next one, as in transformers.
void complete_added_tokens(BpeSpec& spec, const TokenizerConfig& config);
/// The id that transformers gives a token that neither the vocabulary nor the added tokens have.
int32_t next_id(const std::vector<AddedToken>& added, size_t n_vocab);
/// Fills bos and eos from the names in the configuration, where the vocabulary has them.
void resolve_bos_eos(BpeSpec& spec, const TokenizerConfig& config);

/// "left right" of a merge list, cut at its only space.
/// errors   kind input at `where`: not two pieces
std::pair<std::string, std::string> split_merge(std::string_view rule, const std::string& where);

}  // namespace tandem::text
