#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "text/added_tokens.h"

namespace tandem::text {

/// Contents of tokenizer_config.json and of the small files next to it; every field may be missing.
struct TokenizerConfig {
  std::string tokenizer_class;  // without a final "Fast"; config.json may name it, too
  std::string model_type;       // from config.json
  std::optional<std::string> bos_token, eos_token, unk_token, pad_token, mask_token;
  std::vector<std::string> special_tokens;  // all that are named to be special
  std::optional<bool> add_bos_token, add_prefix_space, legacy, split_special_tokens;
  std::vector<std::string> trimmed_after;  // control pieces that take the white space after them
  std::vector<AddedToken> added;
  size_t n_with_flags = 0;  // of `added`: the first ones, from added_tokens_decoder
};

/// errors   kind input: malformed JSON (with position) or a field of another type
TokenizerConfig parse_tokenizer_config(std::string_view json, const std::string& where);
/// Adds the missing tokens from special_tokens_map.json.
void merge_special_tokens_map(TokenizerConfig& config, std::string_view json,
                              const std::string& where);
/// Adds the tokens of added_tokens.json ({"content": id}) that are still missing.
void merge_added_tokens(TokenizerConfig& config, std::string_view json, const std::string& where);

/// Reads whichever of these files and config.json (model_type, tokenizer_class) exist.
TokenizerConfig load_tokenizer_config(const std::filesystem::path& model_folder);

/// An entry of "added_tokens" or "added_tokens_decoder" but for its id.
AddedToken parse_added_token(const io::Json& entry, const std::string& where);
/// A JSON value as token id. Ids are indices of tables: those that are negative or beyond any real
/// vocabulary are refused.
int32_t parse_id(const io::Json& value, const std::string& piece, const std::string& where);

}  // namespace tandem::text
