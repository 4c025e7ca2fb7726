#include "text/support.h"

#include <doctest/doctest.h>

#include "source_dir.h"
#include "text/byte_level.h"
#include "text/tokenizer_config.h"

namespace tandem::test {

std::string source_path(const std::string& below) { return source_dir() / below; }

json byte_level_json(const std::vector<std::pair<std::string, std::string>>& merges,
                     const std::vector<json>& added) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[text::byte_level_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  json rules = json::array();
  for (const auto& [left, right] : merges) {
    vocab[text::byte_level_of_bytes(left + right)] = vocab.size();
    rules.push_back(text::byte_level_of_bytes(left) + " " + text::byte_level_of_bytes(right));
  }
  json tokens = json::array();
  for (json token : added) {
    token["id"] = vocab.size() + tokens.size();
    tokens.push_back(token);
  }
  return {
      {"added_tokens", tokens},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", rules}}}};
}

json added_token(const std::string& content, bool special, const json& flags) {
  json token = {{"content", content}, {"special", special}};
  token.update(flags);
  return token;
}

std::unique_ptr<text::Tokenizer> from_json(const json& file) {
  return text::tokenizer_from_json(file.dump(), text::TokenizerConfig{}, "tokenizer.json");
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  return {ErrorKind::internal, "", ""};
}

}  // namespace tandem::test
