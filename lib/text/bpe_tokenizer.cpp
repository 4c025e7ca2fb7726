#include "text/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "io/quote.h"
#include "text/bpe_scratch.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

using IdOfPiece = std::unordered_map<std::string_view, int32_t>;

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr int32_t kNoId = -1;

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(TokenizerParts parts, BpeSpec spec, std::span<const Merge> merges,
               const IdOfPiece& id_of_piece)
      : Tokenizer(std::move(parts)),
        alphabet_(spec.alphabet),
        normalizer_(std::move(spec.normalizer)),
        space_prefix_(spec.space_prefix),
        pre_tokenizer_(std::move(spec.pre_tokenizer)),
        fuse_unk_(spec.fuse_unk),
        merger_(merges) {
    std::erase_if(spec.added, [](const AddedToken& t) { return !t.normalized; });
    for (AddedToken& token : spec.added) token.content = apply_steps(normalizer_, token.content);
    normalized_finder_ = AddedTokenFinder(std::move(spec.added));
    fill_units(id_of_piece, spec);
    longest_ = longest_id(id_of_piece);
    if (spec.ignore_merges)
      for (const auto& [piece, id] : id_of_piece) whole_words_.emplace(token_bytes(id), id);
  }

 private:
  bool encode_part(std::string_view part, Place place, bool parse_special,
                   IdList& out) const override {
    const auto give_back = [this](Scratch* s) { pool_.give_back(std::unique_ptr<Scratch>(s)); };
    const std::unique_ptr<Scratch, decltype(give_back)> scratch(pool_.take().release(), give_back);
    std::string normalized;
    std::string_view whole = part;
    if (!normalizer_.empty()) whole = normalized = apply_steps(normalizer_, part);
    const bool all = normalized_finder_.split(
        whole, parse_special,
        [&](std::string_view text) {
          const auto at = static_cast<size_t>(text.data() - whole.data());
          return encode_words(text, at, at == 0 ? place : Place::after_token, *scratch, out);
        },
        [&](int32_t id) {
          out.ids.push_back(id);
          return true;
        });
    // Of the part as it was given, which the normaliser made longer or shorter.
    if (!all && whole.size() != part.size())
      out.bytes_done = part.size() * out.bytes_done / whole.size();
    return all;
  }

  /// Words of `text`, which begins at byte `at` of its part.
  bool encode_words(std::string_view text, size_t at, Place place, Scratch& scratch,
                    IdList& out) const {
    std::string prefixed;
    const bool wants_space =
        (space_prefix_ == SpacePrefix::every_part && place != Place::after_text) ||
        (space_prefix_ == SpacePrefix::first_part && place == Place::begins_text);
    const std::string_view space = alphabet_ == BpeAlphabet::bytes ? " " : kSpaceMark;
    if (wants_space && !text.starts_with(space)) text = prefixed = std::string(space).append(text);
    const size_t n_added = prefixed.empty() ? 0 : space.size();
    const auto admit = [&](size_t n_read, size_t n_left) {
      return out.admit(at + n_read - std::min(n_read, n_added), fewest_ids(n_left));
    };
    if (!admit(0, text.size())) return false;
    std::string spaced;
    return pre_tokenizer_.split(text, scratch.regex, [&](std::string_view word) {
      const size_t size = word.size();
      const auto end = static_cast<size_t>(word.data() - text.data()) + size;
      if (space_prefix_ == SpacePrefix::every_word && !word.starts_with(space))
        word = spaced.assign(space).append(word);
      const bool all = encode_word(word, scratch, out, [&](size_t n_left) {
        n_left = std::min(n_left, size);
        return admit(end - n_left, n_left + text.size() - end);
      });
      return all && admit(end, text.size() - end);
    });
  }

  /// Ids that n bytes of text have at least.
  size_t fewest_ids(size_t n_bytes) const {
    return longest_ > 0 ? (n_bytes + longest_ - 1) / longest_ : 0;
  }

  /// The word's ids; false where `admit`, called with the bytes of a long word that are left,
  /// stopped it.
  template <class Admit>
  bool encode_word(std::string_view word, Scratch& scratch, IdList& out, const Admit& admit) const {
    if (!whole_words_.empty()) {
      const auto whole = whole_words_.find(word);
      if (whole != whole_words_.end()) {
        out.ids.push_back(whole->second);
        return true;
      }
    }
    if (word.size() > BpeWindows::kWindow) return encode_long_word(word, scratch, out, admit);
    const bool is_cached = word.size() <= WordCache::kMaxWord;
    const size_t hash = is_cached ? std::hash<std::string_view>{}(word) : 0;
    if (is_cached && scratch.cache.find(word, hash, out.ids)) return true;
    scratch.word.clear();
    push_symbols(word, scratch.word);
    merger_.apply(scratch.word, scratch.bpe);
    out.ids.insert(out.ids.end(), scratch.word.begin(), scratch.word.end());
    if (is_cached) scratch.cache.store(word, hash, scratch.word);
    return true;
  }

  template <class Admit>
  bool encode_long_word(std::string_view word, Scratch& scratch, IdList& out,
                        const Admit& admit) const {
    const size_t n_before = out.ids.size();
    std::string_view rest = word;
    const auto fill = [&](size_t n, std::vector<int32_t>& symbols) {
      while (symbols.size() < n && !rest.empty()) {
        // A character has one symbol at least, if not fused to the unknown one before it.
        size_t size = std::min(n - symbols.size(), rest.size());
        while (size < rest.size() && continues_char(rest[size])) ++size;
        push_symbols(rest.substr(0, size), symbols);
        rest.remove_prefix(size);
      }
      return !rest.empty();
    };
    // Ids count before the rest of the word is known, which could change them only by a chain of
    // rules that reaches back over a margin.
    const auto go_on = [&](size_t n_waiting) {
      return admit(std::min(rest.size() + n_waiting, word.size()));
    };
    using End = BpeWindows::End;
    const End end = scratch.windows.apply(merger_, scratch.bpe, fill, go_on, out.ids);
    if (end != End::uncertain) return end == End::whole;
    out.ids.resize(n_before);
    std::vector<int32_t> symbols;
    push_symbols(word, symbols);
    BpeWorkspace large;
    merger_.apply(symbols, large);
    out.ids.insert(out.ids.end(), symbols.begin(), symbols.end());
    return true;
  }

  /// Symbols of a text from which merging starts.
  void push_symbols(std::string_view text, std::vector<int32_t>& word) const {
    if (alphabet_ == BpeAlphabet::characters) return push_chars(text, word);
    for (const char byte : text) push_byte(static_cast<uint8_t>(byte), word);
  }

  void push_byte(uint8_t byte, std::vector<int32_t>& word) const {
    if (id_of_byte_[byte] != kNoId) return word.push_back(id_of_byte_[byte]);
    push_unknown(fmt::format("byte 0x{:02X}", byte), word);
  }

  void push_chars(std::string_view text, std::vector<int32_t>& word) const {
    for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
      const std::string_view c = text.substr(i, utf8_length(text[i]));
      const auto found = id_of_char_.find(first_char(c));
      if (found != id_of_char_.end())
        word.push_back(found->second);
      else if (std::ranges::all_of(c, [&](char b) { return has_byte(static_cast<uint8_t>(b)); }))
        for (const char byte : c) word.push_back(id_of_byte_[static_cast<uint8_t>(byte)]);
      else
        push_unknown(fmt::format("the character '{}'", c), word);
    }
  }

  bool has_byte(uint8_t byte) const { return id_of_byte_[byte] != kNoId; }

  /// Hugging Face leaves such units out where no unknown token is set; here nothing vanishes.
  void push_unknown(const std::string& unit, std::vector<int32_t>& word) const {
    if (unk_ == kNoId)
      throw input_error("text", "the tokenizer has no token for {}, and no unknown token", unit)
          .hint("remove it from the text, or use a tokenizer whose vocabulary covers all bytes");
    if (!fuse_unk_ || word.empty() || word.back() != unk_) word.push_back(unk_);
  }

  /// 0 where text may vanish or any number of units become one unknown token.
  size_t longest_id(const IdOfPiece& id_of_piece) const {
    const bool knows_bytes =
        std::ranges::all_of(id_of_byte_, [](int32_t id) { return id != kNoId; });
    if (!pre_tokenizer_.keeps_all() || (!knows_bytes && fuse_unk_)) return 0;
    size_t longest = 4;  // an unknown character
    for (const auto& [piece, id] : id_of_piece)
      longest = std::max(longest,
                         alphabet_ == BpeAlphabet::bytes ? token_bytes(id).size() : piece.size());
    return longest;
  }

  void fill_units(const IdOfPiece& id_of_piece, const BpeSpec& spec) {
    const auto id = [&](std::string_view piece) {
      const auto found = id_of_piece.find(piece);
      return found == id_of_piece.end() ? kNoId : found->second;
    };
    if (!spec.unk_token.empty()) unk_ = id(spec.unk_token);
    for (size_t byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      if (alphabet_ == BpeAlphabet::bytes)
        id_of_byte_[byte] = id(byte_level_of_bytes({&c, 1}));
      else
        id_of_byte_[byte] = spec.byte_fallback ? id(fmt::format("<0x{:02X}>", byte)) : kNoId;
    }
    if (alphabet_ == BpeAlphabet::characters)
      for (const auto& [piece, piece_id] : id_of_piece)
        if (!piece.empty() && piece.size() == utf8_length(piece[0]))
          id_of_char_.emplace(first_char(piece), piece_id);
  }

  BpeAlphabet alphabet_;
  std::vector<NormalizerStep> normalizer_;
  AddedTokenFinder normalized_finder_;  // of the tokens that are looked for after normalising
  SpacePrefix space_prefix_;
  size_t longest_ = 0;  // bytes of text that one id may stand for; 0: any number
  PreTokenizer pre_tokenizer_;
  bool fuse_unk_;
  BpeMerger merger_;
  std::array<int32_t, 256> id_of_byte_{};
  std::unordered_map<char32_t, int32_t> id_of_char_;
  std::unordered_map<std::string_view, int32_t> whole_words_;  // for ignore_merges
  int32_t unk_ = kNoId;
  mutable ScratchPool pool_;
};

/// What a piece stands for in text.
std::string bytes_of_piece(const std::string& piece, BpeAlphabet alphabet) {
  if (alphabet == BpeAlphabet::bytes) return bytes_of_byte_level(piece).value_or(piece);
  unsigned byte = 0;
  if (piece.size() == 6 && piece.starts_with("<0x") && piece.back() == '>' &&
      std::sscanf(piece.c_str(), "<0x%2X>", &byte) == 1)
    return {static_cast<char>(byte)};
  std::string bytes;
  for (size_t i = 0; i < piece.size();) {
    const bool is_mark = std::string_view(piece).substr(i).starts_with(kSpaceMark);
    bytes += is_mark ? ' ' : piece[i];
    i += is_mark ? kSpaceMark.size() : 1;
  }
  return bytes;
}

/// Table sizes follow the largest id, so ids that leave large gaps are refused.
size_t table_size(const BpeSpec& spec, const std::string& where) {
  int32_t max_id = -1;
  for (const auto& [piece, id] : spec.vocab) max_id = std::max(max_id, id);
  for (const AddedToken& token : spec.added) max_id = std::max(max_id, token.id);
  const size_t n_pieces = spec.vocab.size() + spec.added.size();
  constexpr size_t kSlack = size_t{1} << 16;
  if (n_pieces == 0) throw input_error(where, "expected a vocabulary with tokens, found none");
  if (static_cast<size_t>(max_id) > 2 * n_pieces + kSlack)
    throw input_error(where, "the largest id is {}, but there are only {} tokens", max_id,
                      n_pieces);
  return static_cast<size_t>(max_id) + 1;
}

/// Token bytes by id, vocabulary first, then added tokens, which may repeat one of its entries.
std::vector<std::string> place_pieces(const BpeSpec& spec, const IdOfPiece& id_of_piece,
                                      const std::string& where) {
  std::vector<std::string> bytes(table_size(spec, where));
  std::vector<const std::string*> owner(bytes.size());
  for (const auto& [piece, id] : spec.vocab) {
    const auto i = static_cast<size_t>(id);
    if (owner[i] != nullptr)
      throw input_error(where, "the pieces {} and {} have the same id {}", io::quote(*owner[i]),
                        io::quote(piece), id);
    owner[i] = &piece;
    bytes[i] = bytes_of_piece(piece, spec.alphabet);
  }
  for (const AddedToken& token : spec.added) {
    const auto i = static_cast<size_t>(token.id);
    if (owner[i] != nullptr && *owner[i] != token.content)
      throw input_error(where, "the tokens {} and {} have the same id {}", io::quote(*owner[i]),
                        io::quote(token.content), token.id);
    const auto in_vocab = id_of_piece.find(token.content);
    if (in_vocab != id_of_piece.end() && in_vocab->second != token.id)
      throw input_error(where,
                        "the token {} has the id {} among added tokens and {} in the "
                        "vocabulary",
                        io::quote(token.content), token.id, in_vocab->second);
    owner[i] = &token.content;
    bytes[i] = token.content;
  }
  return bytes;
}

std::vector<Merge> resolve_merges(const BpeSpec& spec, const IdOfPiece& id_of_piece,
                                  const std::string& where) {
  std::vector<Merge> merges;
  merges.reserve(spec.merges.size());
  std::string joined;
  for (const auto& rule : spec.merges) {
    const auto id = [&](const std::string& piece) {
      const auto found = id_of_piece.find(piece);
      if (found != id_of_piece.end()) return found->second;
      throw input_error(
          where, "merge {} ({} with {}) needs the piece {}, which is not in the vocabulary",
          merges.size(), io::quote(rule.first), io::quote(rule.second), io::quote(piece))
          .hint("the vocabulary and the merges do not match; copy both from one checkpoint");
    };
    joined.assign(rule.first).append(rule.second);
    merges.push_back({id(rule.first), id(rule.second), id(joined)});
  }
  return merges;
}

/// Where no rule joins text that ends in another character to text that begins with a space mark, a
/// word may end there: the merges stay the same, but words are short and the cache knows them.
bool never_merges_into_space(const BpeSpec& spec) {
  return std::ranges::none_of(spec.merges, [](const auto& rule) {
    return rule.second.starts_with(kSpaceMark) && !rule.first.ends_with(kSpaceMark);
  });
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeSpec spec, const std::string& where) {
  IdOfPiece id_of_piece;
  id_of_piece.reserve(spec.vocab.size());
  for (const auto& [piece, id] : spec.vocab)
    if (const auto [entry, is_new] = id_of_piece.emplace(piece, id); !is_new && entry->second != id)
      throw input_error(where, "the piece {} has two ids, {} and {}", io::quote(piece),
                        entry->second, id);

  if (spec.alphabet == BpeAlphabet::characters && spec.pre_tokenizer.empty() &&
      !spec.ignore_merges && id_of_piece.contains(kSpaceMark) && never_merges_into_space(spec))
    spec.pre_tokenizer.add_split(fmt::format("{0}+[^{0}]*|[^{0}]+", kSpaceMark),
                                 PreTokenizer::Keep::both, where);
  TokenizerParts parts;
  parts.bytes = place_pieces(spec, id_of_piece, where);
  const std::vector<Merge> merges = resolve_merges(spec, id_of_piece, where);
  parts.added = spec.added;
  parts.prefix = spec.prefix;
  parts.bos = spec.bos;
  parts.eos = spec.eos;
  parts.drops_leading_space = spec.drops_leading_space;
  parts.splits_special = spec.splits_special;
  // The keys of id_of_piece are views into spec.vocab, which the constructor leaves alone.
  auto vocab = std::move(spec.vocab);
  return std::make_unique<BpeTokenizer>(std::move(parts), std::move(spec), merges, id_of_piece);
}

int32_t next_id(const std::vector<AddedToken>& added, size_t n_vocab) {
  auto id = static_cast<int32_t>(n_vocab);
  for (const AddedToken& token : added) id = std::max(id, token.id + 1);
  return id;
}

void complete_added_tokens(BpeSpec& spec, const TokenizerConfig& config) {
  spec.splits_special = config.split_special_tokens.value_or(false);
  std::unordered_map<std::string, size_t> index;
  const auto add = [&](const AddedToken& token, bool replaces = false) {
    const auto [entry, is_new] = index.emplace(token.content, spec.added.size());
    if (is_new) return spec.added.push_back(token);
    AddedToken& known = spec.added[entry->second];
    if (!replaces || known.id != token.id) return;
    const bool special = known.special || token.special;
    known = token;
    known.special = special;
  };
  for (size_t i = 0; i < spec.added.size(); ++i) index.emplace(spec.added[i].content, i);
  for (size_t i = 0; i < config.added.size(); ++i) add(config.added[i], i < config.n_with_flags);
  std::unordered_set<std::string_view> missing;
  for (const std::string& content : config.special_tokens) {
    const auto known = index.find(content);
    if (known != index.end())
      spec.added[known->second].special = true;
    else
      missing.insert(content);
  }
  if (missing.empty()) return;
  for (const auto& [piece, id] : spec.vocab)
    if (missing.contains(piece)) add({.content = piece, .id = id, .special = true});
  for (const std::string& content : config.special_tokens)
    if (!index.contains(content))
      add({.content = content, .id = next_id(spec.added, spec.vocab.size()), .special = true});
}

void resolve_bos_eos(BpeSpec& spec, const TokenizerConfig& config) {
  const auto id = [&](const std::optional<std::string>& content) -> std::optional<int32_t> {
    if (!content) return std::nullopt;
    const auto token = std::ranges::find(spec.added, *content, &AddedToken::content);
    return token == spec.added.end() ? std::nullopt : std::optional(token->id);
  };
  if (!spec.bos) spec.bos = id(config.bos_token);
  if (!spec.eos) spec.eos = id(config.eos_token);
}

}  // namespace tandem::text
