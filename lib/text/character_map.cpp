#include "text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tandem::text {
namespace {

static_assert(std::endian::native == std::endian::little, "tables are read in place");

constexpr size_t kDeepest = 1024;            // bytes that one rule replaces
constexpr size_t kLongestReplacement = 256;  // bytes; the longest of Unicode's NFKC has 33
constexpr int kMostRules = 32;               // that match at one place: the library's table

class CharacterMap {
 public:
  explicit CharacterMap(std::string_view map) {
    uint32_t trie_bytes = 0;
    if (map.size() < sizeof(trie_bytes)) return;
    std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
    map.remove_prefix(sizeof(trie_bytes));
    if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= map.size()) return;
    units_ = map.substr(0, trie_bytes);
    texts_ = map.substr(trie_bytes);
    n_matches_.assign(trie_bytes / 4, kUnseen);
  }

  bool is_sound() {
    return !texts_.empty() && texts_.back() == '\0' && most_matches_from(0, 0) != kDamaged;
  }

 private:
  static constexpr int8_t kUnseen = -1, kOnPath = -2, kDamaged = -3;

  uint32_t unit(uint32_t at) const {
    uint32_t value = 0;
    std::memcpy(&value, units_.data() + size_t{4} * at, sizeof(value));
    return value;
  }

  bool is_text(uint32_t at) const {
    return at < texts_.size() &&
           texts_.substr(at, kLongestReplacement + 1).find('\0') != std::string_view::npos;
  }

  /// How many rules can match, each a prefix of the next, from here on down: what lies below is
  /// looked at once, a way back to a unit above it would match without end.
  int8_t most_matches_from(uint32_t at, size_t depth) {
    if (n_matches_[at] != kUnseen) return n_matches_[at] == kOnPath ? kDamaged : n_matches_[at];
    const uint32_t node = unit(at);
    const uint32_t base = at ^ ((node >> 10) << ((node & (1u << 9)) >> 6));
    if ((base | 0xFF) >= n_matches_.size() || depth > kDeepest) return kDamaged;
    const bool ends_rule = (node & (1u << 8)) != 0;
    if (ends_rule && !is_text(unit(base) & 0x7FFFFFFFu)) return kDamaged;
    n_matches_[at] = kOnPath;
    int most_below = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if ((unit(base ^ byte) & 0x800000FFu) != byte) continue;  // not a child of this unit
      const int8_t below = most_matches_from(base ^ byte, depth + 1);
      if (below == kDamaged) return kDamaged;
      most_below = std::max<int>(most_below, below);
    }
    const int most = most_below + (ends_rule ? 1 : 0);
    return most > kMostRules ? kDamaged : n_matches_[at] = static_cast<int8_t>(most);
  }

  std::string_view units_, texts_;
  std::vector<int8_t> n_matches_;  // by unit
};

}  // namespace

bool is_sound_character_map(std::string_view map) { return CharacterMap(map).is_sound(); }

}  // namespace tandem::text
