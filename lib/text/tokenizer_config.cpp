#include "text/tokenizer_config.h"

#include <charconv>
#include <unordered_set>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::text {

using io::Json;

namespace {

constexpr int64_t kMaxId = (1 << 24) - 1;  // 64 times the largest vocabularies in use

// Python takes the last of two equal keys, and what it loads shall load here.
Json parse_object(std::string_view text, const std::string& where) {
  Json object = io::parse_json(text, where, {.allow_duplicate_keys = true});
  if (!object.is_object())
    throw input_error(where, "expected a JSON object, found {}", io::describe(object));
  return object;
}

/// A token is written as a string or as an object with its content.
std::string token_content(const Json& value, const std::string& where) {
  return value.is_object() ? io::get_string(value, "content", where)
                           : io::as_string(value, "a special token", where);
}

void merge_special_names(TokenizerConfig& config, const Json& object, const std::string& where) {
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    const auto value = object.find(key);
    if (value == object.end() || value->is_null()) continue;
    const std::string content = token_content(*value, where);
    const std::string_view name = key;
    if (name == "bos_token" && !config.bos_token) config.bos_token = content;
    if (name == "eos_token" && !config.eos_token) config.eos_token = content;
    if (name == "unk_token" && !config.unk_token) config.unk_token = content;
    if (name == "pad_token" && !config.pad_token) config.pad_token = content;
    if (name == "mask_token" && !config.mask_token) config.mask_token = content;
    config.special_tokens.push_back(content);
  }
  if (const Json* extra = io::find_array(object, "additional_special_tokens", where))
    for (const Json& value : *extra) config.special_tokens.push_back(token_content(value, where));
}

void read_added_tokens_decoder(TokenizerConfig& config, const Json& object,
                               const std::string& where) {
  const Json* decoder = io::find_object(object, "added_tokens_decoder", where);
  if (decoder == nullptr) return;
  for (const auto& [key, entry] : decoder->items()) {
    AddedToken token = parse_added_token(entry, where);
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size())
      throw input_error(where, "'added_tokens_decoder' has the key {}, expected an id",
                        io::quote(key));
    token.id = parse_id(id, token.content, where);
    config.added.push_back(std::move(token));
  }
  config.n_with_flags = config.added.size();
}

std::string read_class(const Json& object, const std::string& where) {
  std::string name = io::find_string(object, "tokenizer_class", where).value_or("");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

std::optional<std::string> read_if_present(const std::filesystem::path& path) {
  constexpr size_t kLimit = size_t{64} << 20;
  return std::filesystem::exists(path) ? std::optional(io::read_regular_file(path, kLimit))
                                       : std::nullopt;
}

}  // namespace

int32_t parse_id(const Json& value, const std::string& piece, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > kMaxId)
    throw input_error(where, "the id of the token {}: expected an integer from 0 to {}, found {}",
                      io::quote(piece), kMaxId, io::describe(value));
  return value.get<int32_t>();
}

AddedToken parse_added_token(const Json& entry, const std::string& where) {
  AddedToken token;
  token.content = io::get_string(entry, "content", where);
  const auto flag = [&](const char* key) {
    return io::find_bool(entry, key, where).value_or(false);
  };
  token.special = flag("special");
  token.lstrip = flag("lstrip");
  token.rstrip = flag("rstrip");
  token.single_word = flag("single_word");
  token.normalized = flag("normalized");
  return token;
}

TokenizerConfig parse_tokenizer_config(std::string_view json, const std::string& where) {
  const Json object = parse_object(json, where);
  TokenizerConfig config;
  config.tokenizer_class = read_class(object, where);
  config.add_bos_token = io::find_bool(object, "add_bos_token", where);
  config.add_prefix_space = io::find_bool(object, "add_prefix_space", where);
  config.legacy = io::find_bool(object, "legacy", where);
  config.split_special_tokens = io::find_bool(object, "split_special_tokens", where);
  merge_special_names(config, object, where);
  read_added_tokens_decoder(config, object, where);
  return config;
}

void merge_special_tokens_map(TokenizerConfig& config, std::string_view json,
                              const std::string& where) {
  merge_special_names(config, parse_object(json, where), where);
}

void merge_added_tokens(TokenizerConfig& config, std::string_view json, const std::string& where) {
  const Json object = parse_object(json, where);
  std::unordered_set<std::string> known;
  for (const AddedToken& token : config.added) known.insert(token.content);
  for (const auto& [content, id] : object.items()) {
    if (known.contains(content)) continue;
    config.added.push_back({.content = content, .id = parse_id(id, content, where)});
  }
}

TokenizerConfig load_tokenizer_config(const std::filesystem::path& model_folder) {
  TokenizerConfig config;
  const auto path = [&](const char* name) { return model_folder / name; };
  if (const auto json = read_if_present(path("tokenizer_config.json")))
    config = parse_tokenizer_config(*json, path("tokenizer_config.json").string());
  if (const auto json = read_if_present(path("special_tokens_map.json")))
    merge_special_tokens_map(config, *json, path("special_tokens_map.json").string());
  if (const auto json = read_if_present(path("added_tokens.json")))
    merge_added_tokens(config, *json, path("added_tokens.json").string());
  if (const auto json = read_if_present(path("config.json"))) {
    const std::string where = path("config.json").string();
    const Json object = parse_object(*json, where);
    config.model_type = io::find_string(object, "model_type", where).value_or("");
    if (config.tokenizer_class.empty()) config.tokenizer_class = read_class(object, where);
  }
  return config;
}

}  // namespace tandem::text
