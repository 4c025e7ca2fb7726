#include "text/sentencepiece_model.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace tandem::text {
namespace {

static_assert(std::endian::native == std::endian::little, "tables are read in place");

/// Walks the fields of one serialized protocol buffer message.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  /// Moves to the next field; false at the end or where the bytes are malformed.
  bool next() {
    if (rest_.empty()) return false;
    const auto tag = varint();
    if (!tag) return fail();
    number = *tag >> 3;
    bytes = {};
    switch (*tag & 7) {
      case 0:
        return varint() ? true : fail();
      case 1:
        return skip(8);
      case 2: {
        const auto length = varint();
        return length ? skip(*length) : fail();
      }
      case 5:
        return skip(4);
      default:
        return fail();
    }
  }

  bool is_malformed() const { return malformed_; }

  uint64_t number = 0;
  std::string_view bytes;  // contents, for strings and messages

 private:
  bool fail() {
    malformed_ = true;
    return false;
  }

  bool skip(uint64_t n) {
    if (n > rest_.size()) return fail();
    bytes = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }

  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
  bool malformed_ = false;
};

/// The map is a 4-byte size, a Darts-clone double array of that many bytes, then zero-terminated
/// replacement texts that its leaves point to.
bool charsmap_stays_inside(std::string_view map) {
  uint32_t trie_bytes = 0;
  if (map.size() < sizeof(trie_bytes)) return false;
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  map.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > map.size()) return false;
  const std::string_view texts = map.substr(trie_bytes);
  if (texts.empty() || texts.back() != '\0') return false;
  const size_t n_units = trie_bytes / 4;
  for (size_t i = 0; i < n_units; ++i) {
    uint32_t unit = 0;
    std::memcpy(&unit, map.data() + 4 * i, sizeof(unit));
    const bool is_leaf = (unit >> 31) != 0;
    if (is_leaf) {
      if ((unit & 0x7FFFFFFFu) >= texts.size()) return false;
      continue;
    }
    const uint32_t offset = (unit >> 10) << ((unit & (1u << 9)) >> 6);
    if (((i ^ offset) | 0xFF) >= n_units) return false;  // its children lie at base ^ byte
  }
  return true;
}

}  // namespace

void check_sentencepiece_model(std::string_view model, const std::string& where) {
  constexpr uint64_t kNormalizerSpec = 3, kDenormalizerSpec = 5, kCharsmap = 2;
  const auto refuse = [&](const char* what) {
    throw input_error(where, "not a SentencePiece model: {}", what)
        .hint("the file is truncated or a Git LFS pointer; download it again");
  };
  Fields fields(model);
  while (fields.next()) {
    if (fields.number != kNormalizerSpec && fields.number != kDenormalizerSpec) continue;
    Fields spec(fields.bytes);
    while (spec.next())
      if (spec.number == kCharsmap && !spec.bytes.empty() && !charsmap_stays_inside(spec.bytes))
        refuse("its character map is damaged");
    if (spec.is_malformed()) refuse("its normalizer is damaged");
  }
  if (fields.is_malformed()) refuse("it is not a whole protocol buffer");
}

std::string without_dummy_prefix(std::string model) {
  // Field 3 (normalizer_spec), 2 bytes: field 3 (add_dummy_prefix) = false. A parser merges
  // messages that occur twice, the later value winning.
  return model.append("\x1A\x02\x18\x00", 4);
}

}  // namespace tandem::text
