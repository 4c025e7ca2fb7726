#pragma once
// Small SentencePiece models as bytes, for the tests and the fuzz seeds.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::test {

/// type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
struct Piece {
  std::string text;
  float score;
  int type;
};

struct ModelSettings {
  int model_type = 2;  // 1 unigram, 2 BPE, 3 word, 4 character
  bool byte_fallback = true;
  bool add_dummy_prefix = true;
  std::string charsmap = {};  // as charsmap() makes it; empty for none
};

inline void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

inline void append_number(std::string& out, uint64_t field, uint64_t value) {
  append_varint(out, field << 3);
  append_varint(out, value);
}

inline void append_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  append_varint(out, (field << 3) | 2);
  append_varint(out, bytes.size());
  out += bytes;
}

inline std::string piece_bytes(const Piece& piece) {
  std::string message;
  append_bytes(message, 1, piece.text);
  message += "\x15";  // field 2, four bytes
  message.append(reinterpret_cast<const char*>(&piece.score), sizeof(piece.score));
  append_number(message, 3, static_cast<uint64_t>(piece.type));
  return message;
}

inline std::string normalizer_bytes(const ModelSettings& settings) {
  std::string message;
  append_bytes(message, 1, "identity");
  if (!settings.charsmap.empty()) append_bytes(message, 2, settings.charsmap);
  append_number(message, 3, settings.add_dummy_prefix ? 1 : 0);
  append_number(message, 4, 0);  // remove_extra_whitespaces
  append_number(message, 5, 1);  // escape_whitespaces
  return message;
}

/// Serialized model with <unk>, <s>, </s> as ids 0..2, then `pieces`.
inline std::string sentencepiece_model(const std::vector<Piece>& pieces,
                                       const ModelSettings& settings = {}) {
  std::string model, trainer;
  for (const Piece& piece : {Piece{"<unk>", 0, 2}, Piece{"<s>", 0, 3}, Piece{"</s>", 0, 3}})
    append_bytes(model, 1, piece_bytes(piece));
  for (const Piece& piece : pieces) append_bytes(model, 1, piece_bytes(piece));
  append_number(trainer, 3, static_cast<uint64_t>(settings.model_type));
  append_number(trainer, 35, settings.byte_fallback ? 1 : 0);
  append_bytes(model, 2, trainer);
  append_bytes(model, 3, normalizer_bytes(settings));
  return model;
}

/// Builds the double array of a character map; a unit holds a label, whether a rule ends there, and
/// the way from its own index to its base, at which (xor the next byte) its children lie.
class CharsmapBuilder {
 public:
  explicit CharsmapBuilder(const std::vector<std::pair<std::string, std::string>>& rules) {
    for (const auto& [from, to] : rules) {
      size_t node = 0;
      for (const char c : from) {
        const auto [next, is_new] =
            nodes_[node].children.emplace(static_cast<uint8_t>(c), nodes_.size());
        node = next->second;  // before nodes_ moves
        if (is_new) nodes_.emplace_back();
      }
      nodes_[node].text = static_cast<int64_t>(texts_.size());
      texts_ += to + '\0';
    }
    place(0, 0, 0);
  }

  std::string bytes() const {
    const auto n = static_cast<uint32_t>(units_.size() * 4);
    std::string out(reinterpret_cast<const char*>(&n), sizeof(n));
    out.append(reinterpret_cast<const char*>(units_.data()), n);
    return out + texts_;
  }

 private:
  struct Node {
    std::map<uint8_t, size_t> children;
    int64_t text = -1;
  };

  static constexpr uint32_t kText = 1u << 31;  // a rule's text; as a child it matches no byte

  bool fits(const Node& node, uint32_t base) {
    if (base >= units_.size()) units_.resize(units_.size() + 256, kText);
    for (const auto& [byte, child] : node.children)
      if (taken_.contains(base ^ byte)) return false;
    return !taken_.contains(base);  // where the rule's text goes, if it has one
  }

  void place(size_t i, uint32_t at, uint8_t label) {
    const Node& node = nodes_[i];
    uint32_t base = 1;
    while (!fits(node, base)) ++base;
    taken_.insert(base);
    units_[at] = label | (at ^ base) << 10;
    if (node.text >= 0) {
      units_[at] |= 1u << 8;
      units_[base] = kText | static_cast<uint32_t>(node.text);
    }
    for (const auto& [byte, child] : node.children) taken_.insert(base ^ byte);
    for (const auto& [byte, child] : node.children) place(child, base ^ byte, byte);
  }

  std::vector<Node> nodes_{1};
  std::vector<uint32_t> units_ = std::vector<uint32_t>(256, kText);
  std::set<uint32_t> taken_ = {0};
  std::string texts_;
};

/// precompiled_charsmap of rules {from, to}; `from` is not empty.
inline std::string charsmap(const std::vector<std::pair<std::string, std::string>>& rules) {
  return CharsmapBuilder(rules).bytes();
}

}  // namespace tandem::test
