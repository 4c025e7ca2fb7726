#include "text/support.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

#include "source_dir.h"
#include "text/byte_level.h"
#include "text/tokenizer_config.h"

namespace tandem::text::test {

std::string source_path(const std::string& below) { return tandem::test::source_dir() / below; }

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tandem-text-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& name, std::string_view bytes) const {
  std::ofstream file(path_ / name, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

json byte_level_json(const std::vector<std::pair<std::string, std::string>>& merges,
                     const std::vector<json>& added) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[byte_level_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  json rules = json::array();
  for (const auto& [left, right] : merges) {
    vocab[byte_level_of_bytes(left + right)] = vocab.size();
    rules.push_back(byte_level_of_bytes(left) + " " + byte_level_of_bytes(right));
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

std::unique_ptr<Tokenizer> from_json(const json& file) {
  return tokenizer_from_json(file.dump(), TokenizerConfig{}, "tokenizer.json");
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

}  // namespace tandem::text::test
