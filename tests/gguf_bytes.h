#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "source_dir.h"

namespace tandem::test {

/// Golden values of GGUF files; tests/data/golden/README.md lists them.
inline const io::Json& golden_gguf() {
  static const io::Json all =
      io::parse_json(io::read_file(source_dir() / "tests/data/golden/gguf.json"), "gguf.json");
  return all;
}

/// The bytes of hexadecimal digits.
inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// Writes a GGUF file into memory; tests damage it afterwards.
class GgufBytes {
 public:
  uint32_t version = 3;
  uint64_t more_tensors = 0;  // counted by the header, absent from the file
  size_t alignment = 32;      // bytes to whose multiples tensors begin

  void text(std::string_view key, std::string_view value) {
    begin(key, 8);
    put_text(values_, value);
  }
  void number(std::string_view key, uint32_t value) {
    begin(key, 4);
    put(values_, value);
  }
  void real(std::string_view key, float value) {
    begin(key, 6);
    put(values_, value);
  }
  void truth(std::string_view key, bool value) {
    begin(key, 7);
    put(values_, static_cast<uint8_t>(value));
  }
  void texts(std::string_view key, const std::vector<std::string>& values) {
    begin(key, 9);
    put(values_, uint32_t{8});
    put(values_, uint64_t{values.size()});
    for (const std::string& value : values) put_text(values_, value);
  }
  /// type     4: u32, 5: i32, 6: f32
  template <class T>
  void list(std::string_view key, uint32_t type, const std::vector<T>& values) {
    begin(key, 9);
    put(values_, type);
    put(values_, uint64_t{values.size()});
    for (const T value : values) put(values_, value);
  }
  /// shape    innermost first, as in the file
  void tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
              std::string_view bytes) {
    tensor_at(name, shape, type, data_.size());
    data_.append(bytes);
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
  }
  void tensor_at(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                 uint64_t offset) {
    put_text(infos_, name);
    put(infos_, static_cast<uint32_t>(shape.size()));
    for (const uint64_t extent : shape) put(infos_, extent);
    put(infos_, type);
    put(infos_, offset);
    ++n_tensors_;
  }

  std::string bytes() const {
    std::string all = "GGUF";
    put(all, version);
    put(all, n_tensors_ + more_tensors);
    put(all, n_values_);
    all += values_ + infos_;
    all.resize((all.size() + alignment - 1) / alignment * alignment);
    return all + data_;
  }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void put_text(std::string& to, std::string_view text) {
    put(to, uint64_t{text.size()});
    to += text;
  }
  void begin(std::string_view key, uint32_t type) {
    put_text(values_, key);
    put(values_, type);
    ++n_values_;
  }

  std::string values_, infos_, data_;
  uint64_t n_values_ = 0, n_tensors_ = 0;
};

/// A Llama of one layer, four features and six tokens, with a SentencePiece tokenizer.
/// context  tokens that it states
inline GgufBytes tiny_gguf(uint32_t context = 64) {
  GgufBytes file;
  file.text("general.architecture", "llama");
  for (const char* key : {"embedding_length", "feed_forward_length", "attention.key_length"})
    file.number(std::string("llama.") + key, 4);
  for (const char* key : {"block_count", "attention.head_count"})
    file.number(std::string("llama.") + key, 1);
  file.number("llama.context_length", context);
  file.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  file.text("tokenizer.ggml.model", "llama");
  file.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a"});
  file.list<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -2, -3, -1});
  file.list<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 1, 1, 1});
  file.number("tokenizer.ggml.bos_token_id", 1);
  file.number("tokenizer.ggml.eos_token_id", 2);
  const std::string zeros(24 * sizeof(float), '\0');
  const auto add = [&](const char* name, const std::vector<uint64_t>& shape) {
    uint64_t n = 1;
    for (const uint64_t extent : shape) n *= extent;
    file.tensor(name, shape, 0, std::string_view(zeros).substr(0, n * sizeof(float)));
  };
  add("token_embd.weight", {4, 6});
  for (const char* name : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"})
    add((std::string(name) + ".weight").c_str(), {4});
  for (const char* name :
       {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    add((std::string("blk.0.") + name + ".weight").c_str(), {4, 4});
  return file;
}

}  // namespace tandem::test
