#include "text/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "io/quote.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

static_assert(std::endian::native == std::endian::little, "tables are read in place");

constexpr size_t kMostBytes = size_t{64} << 20;  // sixteen times the largest in use
constexpr size_t kMostPieces = size_t{1} << 22;  // likewise
constexpr size_t kLongestPiece = 1024;           // the library's recursion descends once a byte
constexpr size_t kMostNested = 64;  // user-defined symbols that match at one place: its table

constexpr uint64_t kBytePairs = 2;  // type of a model

enum WireType : uint64_t { kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5 };

constexpr uint64_t tag_of(uint64_t field, WireType type) { return field << 3 | type; }

/// Walks the fields of one serialized protocol buffer message.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  /// Moves to the next field; false at the end or where the bytes are malformed.
  bool next() {
    if (rest_.empty()) return false;
    const auto read = varint();
    if (!read || *read < 8 || *read > UINT32_MAX) return fail();
    tag = *read;
    number = 0;
    bytes = {};
    switch (tag & 7) {
      case kVarint: {
        const auto value = varint();
        number = value.value_or(0);
        return value ? true : fail();
      }
      case kEightBytes:
        return skip(8);
      case kBytes: {
        const auto length = varint();
        return length ? skip(*length) : fail();
      }
      case kFourBytes:
        return skip(4);
      default:
        return fail();
    }
  }

  bool is_malformed() const { return malformed_; }

  uint64_t tag = 0;        // see tag_of
  uint64_t number = 0;     // value of a varint
  std::string_view bytes;  // contents of a string, a message or a number of fixed size

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

/// A message under construction.
class Message {
 public:
  void number(uint64_t field, uint64_t value) {
    varint(tag_of(field, kVarint));
    varint(value);
  }
  void four_bytes(uint64_t field, float value) {
    varint(tag_of(field, kFourBytes));
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void text(uint64_t field, std::string_view value) {
    varint(tag_of(field, kBytes));
    varint(value.size());
    bytes += value;
  }

  std::string bytes;

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
    bytes += static_cast<char>(value);
  }
};

/// The length of the longest chain of texts, each a prefix of the next.
size_t longest_prefix_chain(std::vector<std::string_view> texts) {
  std::ranges::sort(texts);
  std::vector<std::string_view> chain;
  size_t longest = 0;
  for (const std::string_view text : texts) {
    while (!chain.empty() && !text.starts_with(chain.back())) chain.pop_back();
    chain.push_back(text);
    longest = std::max(longest, chain.size());
  }
  return longest;
}

/// Reads a ModelProto and writes again what of it encoding needs. Of a field that occurs twice the
/// later value wins, also in two messages of one field: so do all parsers of protocol buffers.
class ModelCopy {
 public:
  ModelCopy(std::string_view model, const std::string& where) : where_(where) {
    if (model.size() > kMostBytes)
      refuse(fmt::format("it has {} bytes, more than {}", model.size(), kMostBytes));
    const bool is_whole = read(model, [&](const Fields& part) {
      if (part.tag == tag_of(1, kBytes)) add_piece(part.bytes);
      if (part.tag == tag_of(2, kBytes) && !read(part.bytes, [&](auto& f) { set_trainer(f); }))
        refuse("its trainer is damaged");
      if (part.tag == tag_of(3, kBytes) && !read(part.bytes, [&](auto& f) { set_normalizer(f); }))
        refuse("its normalizer is damaged");
    });
    if (!is_whole) refuse("its protocol buffer is incomplete");
    if (!charsmap_.empty() && !is_sound_character_map(charsmap_))
      refuse("its character map is damaged");
    if (longest_prefix_chain(user_defined_) > kMostNested)
      refuse(fmt::format("more than {} of its user-defined symbols are prefixes of each other",
                         kMostNested));
  }

  bool in_windows() const {
    return model_type_ == kBytePairs && byte_fallback_ && charsmap_.empty() && !removes_spaces_ &&
           escapes_spaces_ && !space_as_suffix_ && !has_unused_;
  }

  const std::vector<std::string_view>& user_defined() const { return user_defined_; }

  std::string take_bytes() {
    Message trainer, normalizer;
    trainer.number(3, model_type_);
    trainer.number(24, space_as_suffix_);
    trainer.number(35, byte_fallback_);
    trainer.text(46, bos_);
    trainer.text(47, eos_);
    normalizer.text(2, charsmap_);
    normalizer.number(3, dummy_prefix_);
    normalizer.number(4, removes_spaces_);
    normalizer.number(5, escapes_spaces_);
    model_.text(2, trainer.bytes);
    model_.text(3, normalizer.bytes);
    return std::move(model_.bytes);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw input_error(where_, "not a SentencePiece model: {}", what)
        .hint("the file is damaged, truncated or a Git LFS pointer; download it again");
  }

  /// False if the message is malformed.
  template <class OnField>
  static bool read(std::string_view message, const OnField& on_field) {
    Fields fields(message);
    while (fields.next()) on_field(fields);
    return !fields.is_malformed();
  }

  void add_piece(std::string_view message) {
    constexpr uint64_t kNormal = 1, kUserDefined = 4, kUnused = 5, kLastType = 6;
    std::string_view text;
    float score = 0;
    uint64_t type = kNormal;
    const bool is_whole = read(message, [&](const Fields& f) {
      if (f.tag == tag_of(1, kBytes)) text = f.bytes;
      if (f.tag == tag_of(2, kFourBytes)) std::memcpy(&score, f.bytes.data(), sizeof(score));
      if (f.tag == tag_of(3, kVarint)) type = f.number;
    });
    const auto refuse_piece = [&](std::string_view what) {
      refuse(fmt::format("piece {}, {}, {}", n_pieces_, io::quote(text), what));
    };
    if (!is_whole) refuse_piece("is damaged");
    if (n_pieces_ == kMostPieces) refuse(fmt::format("it has more than {} pieces", kMostPieces));
    if (text.empty()) refuse_piece("is empty");
    if (text.size() > kLongestPiece)
      refuse_piece(fmt::format("has {} bytes, more than {}", text.size(), kLongestPiece));
    if (find_invalid_utf8(text) != std::string_view::npos) refuse_piece("is not UTF-8");
    if (text.find('\0') != std::string_view::npos) refuse_piece("has a zero byte");
    if (!std::isfinite(score)) refuse_piece(fmt::format("has the score {}", score));
    if (type < kNormal || type > kLastType) refuse_piece(fmt::format("is of type {}", type));
    if (type == kUserDefined) user_defined_.push_back(text);
    has_unused_ = has_unused_ || type == kUnused;
    Message piece;
    piece.text(1, text);
    piece.four_bytes(2, score);
    piece.number(3, type);
    model_.text(1, piece.bytes);
    ++n_pieces_;
  }

  void set_trainer(const Fields& f) {
    if (f.tag == tag_of(3, kVarint) && (f.number < 1 || f.number > 4))
      refuse(fmt::format("its model type is {}, expected 1 to 4", f.number));
    if (f.tag == tag_of(3, kVarint)) model_type_ = f.number;
    if (f.tag == tag_of(24, kVarint)) space_as_suffix_ = f.number != 0;
    if (f.tag == tag_of(35, kVarint)) byte_fallback_ = f.number != 0;
    if (f.tag == tag_of(46, kBytes)) bos_ = f.bytes;
    if (f.tag == tag_of(47, kBytes)) eos_ = f.bytes;
  }

  void set_normalizer(const Fields& f) {
    if (f.tag == tag_of(2, kBytes)) charsmap_ = f.bytes;
    if (f.tag == tag_of(3, kVarint)) dummy_prefix_ = f.number != 0;
    if (f.tag == tag_of(4, kVarint)) removes_spaces_ = f.number != 0;
    if (f.tag == tag_of(5, kVarint)) escapes_spaces_ = f.number != 0;
  }

  const std::string& where_;
  Message model_;
  size_t n_pieces_ = 0;
  std::vector<std::string_view> user_defined_;
  uint64_t model_type_ = 1;
  bool byte_fallback_ = false, space_as_suffix_ = false, has_unused_ = false;
  bool dummy_prefix_ = true, removes_spaces_ = true, escapes_spaces_ = true;
  std::string_view bos_, eos_, charsmap_;
};

}  // namespace

CheckedSentencePieceModel checked_sentencepiece_model(std::string_view model,
                                                      const std::string& where) {
  ModelCopy copy(model, where);
  return {.bytes = copy.take_bytes(),
          .in_windows = copy.in_windows(),
          .user_defined = {copy.user_defined().begin(), copy.user_defined().end()}};
}

std::string sentencepiece_model(std::span<const SentencePiece> pieces, bool dummy_prefix) {
  Message model, trainer, normalizer;
  for (const SentencePiece& p : pieces) {
    Message piece;
    piece.text(1, p.text);
    piece.four_bytes(2, p.score);
    piece.number(3, p.type);
    model.text(1, piece.bytes);
  }
  constexpr uint64_t kByte = 6;
  trainer.number(3, kBytePairs);
  trainer.number(35, std::ranges::any_of(pieces, [](auto& p) { return p.type == kByte; }));
  normalizer.number(3, dummy_prefix);
  normalizer.number(4, 0);
  normalizer.number(5, 1);
  model.text(2, trainer.bytes);
  model.text(3, normalizer.bytes);
  return std::move(model.bytes);
}

std::string without_dummy_prefix(std::string model) {
  // Field 3 (normalizer_spec), 2 bytes: field 3 (add_dummy_prefix) = false. A parser merges
  // messages that occur twice, the later value winning.
  return model.append("\x1A\x02\x18\x00", 4);
}

}  // namespace tandem::text
