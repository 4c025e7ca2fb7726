#include "text/support.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "text/byte_level.h"
#include "text/tokenizer_config.h"

namespace tandem::text::test {

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

namespace {

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void append_number(std::string& out, int field, uint64_t value) {
  append_varint(out, static_cast<uint64_t>(field) << 3);
  append_varint(out, value);
}

void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_varint(out, (static_cast<uint64_t>(field) << 3) | 2);
  append_varint(out, bytes.size());
  out += bytes;
}

}  // namespace

std::string sentencepiece_model(const std::vector<Piece>& pieces, bool add_dummy_prefix) {
  std::vector<Piece> all = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  all.insert(all.end(), pieces.begin(), pieces.end());
  std::string model;
  for (const Piece& piece : all) {
    std::string message, score(4, '\0');
    append_bytes(message, 1, piece.text);
    message += "\x15";  // field 2, four bytes
    std::memcpy(score.data(), &piece.score, 4);
    message += score;
    append_number(message, 3, static_cast<uint64_t>(piece.type));
    append_bytes(model, 1, message);
  }
  std::string trainer, normalizer;
  append_number(trainer, 3, 2);   // model_type BPE
  append_number(trainer, 35, 1);  // byte_fallback
  append_bytes(model, 2, trainer);
  append_bytes(normalizer, 1, "identity");
  append_number(normalizer, 3, add_dummy_prefix ? 1 : 0);
  append_number(normalizer, 4, 0);  // remove_extra_whitespaces
  append_number(normalizer, 5, 1);  // escape_whitespaces
  append_bytes(model, 3, normalizer);
  return model;
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
