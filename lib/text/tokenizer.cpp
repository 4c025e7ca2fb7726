#include "text/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "io/quote.h"
#include "text/streamer.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

constexpr size_t kTextLimit = size_t{1}
                              << 30;  // positions within a text fit int32_t, with a margin

std::vector<AddedToken> raw_text_tokens(std::vector<AddedToken> tokens) {
  std::erase_if(tokens, [](const AddedToken& t) { return t.normalized; });
  return tokens;
}

void require_text(std::string_view utf8) {
  if (utf8.size() >= kTextLimit)
    throw input_error("text", "has {} bytes to tokenise at once, but at most {} are supported",
                      utf8.size(), kTextLimit - 1)
        .hint("split the text into documents");
  require_utf8(utf8, "text");
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts)
    : bytes_(std::move(parts.bytes)),
      special_(bytes_.size()),
      finder_(raw_text_tokens(parts.added)),
      prefix_(std::move(parts.prefix)),
      bos_(parts.bos),
      eos_(parts.eos),
      drops_leading_space_(parts.drops_leading_space),
      splits_special_(parts.splits_special) {
  id_of_bytes_.reserve(bytes_.size());
  std::vector<bool> added(bytes_.size());
  for (const AddedToken& token : parts.added) {
    TANDEM_CHECK(token.id >= 0 && token.id < vocab_size(),
                 "the added token {} is not within the vocabulary of {}", token.id, vocab_size());
    added[static_cast<size_t>(token.id)] = true;
    id_of_bytes_.emplace(bytes_[static_cast<size_t>(token.id)], token.id);
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
  }
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id].empty()) continue;
    id_of_bytes_.emplace(bytes_[id], static_cast<int32_t>(id));
    if (!added[id]) learned_size_ = static_cast<int32_t>(id) + 1;
  }
  id_limit_ = vocab_size();
}

std::vector<int32_t> Tokenizer::encode(std::string_view utf8, EncodeOptions options) const {
  return encode_cut(utf8, {}, options).ids;
}

LimitedIds Tokenizer::encode_within(std::string_view utf8, size_t most,
                                    EncodeOptions options) const {
  require_text(utf8);
  IdList list{.most = most};
  list.ids.reserve(std::min(most, utf8.size() / 4) + 8);
  if (options.add_bos) list.ids = prefix_;
  Place place = Place::begins_text;
  const bool fits = encode_piece(utf8, place, options, list) && list.admit(utf8.size(), 0);
  require_known(list.ids, "text");
  const size_t n = list.ids.size();
  return {.ids = std::move(list.ids),
          .bytes = fits ? utf8.size() : list.bytes_done,
          .at_least = fits ? n : list.at_least,
          .fits = fits};
}

CutIds Tokenizer::encode_cut(std::string_view utf8, std::span<const size_t> cuts,
                             EncodeOptions options) const {
  require_text(utf8);
  CutIds all;
  IdList list;
  list.ids.reserve(utf8.size() / 4 + 8);
  if (options.add_bos) list.ids = prefix_;
  Place place = Place::begins_text;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    TANDEM_CHECK(begin <= cut && cut <= utf8.size(), "cut at {} after {} of {} bytes", cut, begin,
                 utf8.size());
    encode_piece(utf8.substr(begin, cut - begin), place, options, list);
    all.before.push_back(list.ids.size());
    begin = cut;
  }
  encode_piece(utf8.substr(begin), place, options, list);
  all.ids = std::move(list.ids);
  require_known(all.ids, "text");
  return all;
}

void Tokenizer::require_known(std::span<const int32_t> ids, const std::string& where) const {
  if (id_limit_ == vocab_size()) return;
  const auto it = std::ranges::find_if(ids, [&](int32_t id) { return id >= id_limit_; });
  if (it != ids.end())
    throw input_error(where, "the token {} has id {}, but the model's embedding has {} rows",
                      io::quote(token_bytes(*it)), *it, id_limit_)
        .hint("remove the token from the text, or resize the model's embedding");
}

bool Tokenizer::encode_piece(std::string_view piece, Place& place, const EncodeOptions& options,
                             IdList& out) const {
  const bool parse_special = options.parse_special && !splits_special_;
  return finder_.split(
      piece, parse_special,
      [&](std::string_view part) {
        const bool all = encode_part(part, place, parse_special, out);
        if (!all) out.bytes_done += static_cast<size_t>(part.data() - piece.data());
        place = Place::after_text;
        return all;
      },
      [&](int32_t id) {
        out.ids.push_back(id);
        place = Place::after_token;
        return true;
      });
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Streamer streamer(*this, {.skip_special = skip_special});
  std::string text;
  for (const int32_t id : ids) streamer.push(id, text);
  streamer.flush(text);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(bytes_[static_cast<size_t>(id)])
                                      : std::string_view();
}

std::optional<int32_t> Tokenizer::id_of(std::string_view bytes) const {
  const auto found = id_of_bytes_.find(bytes);
  if (found == id_of_bytes_.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

}  // namespace tandem::text
