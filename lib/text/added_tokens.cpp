#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace tandem::text {
namespace {

bool touches_word(std::string_view before, std::string_view after) {
  return (!before.empty() && is_word_char(last_char(before))) ||
         (!after.empty() && is_word_char(first_char(after)));
}

size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const char32_t c = last_char(text.substr(0, end));
    if (!is_white_space(c)) break;
    do --end;
    while ((static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  }
  return text.size() - end;
}

size_t leading_space(std::string_view text) {
  size_t i = 0;
  while (i < text.size() && is_white_space(first_char(text.substr(i)))) i += utf8_length(text[i]);
  return i;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  std::ranges::stable_sort(tokens_, {}, &AddedToken::content);
  const auto repeated =
      std::unique(tokens_.begin(), tokens_.end(),
                  [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; });
  tokens_.erase(repeated, tokens_.end());
  for (const AddedToken& token : tokens_)
    starts_token_[static_cast<uint8_t>(token.content[0])] = true;
}

/// The longest token that `text` begins with: the candidates are a range of the sorted list that
/// narrows with each byte, and one that ends here is the first of its range.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  const AddedToken* found = nullptr;
  auto begin = tokens_.begin(), end = tokens_.end();
  for (size_t depth = 0; depth < text.size() && begin != end; ++depth) {
    const auto byte_of = [depth](const AddedToken& t) {
      return depth < t.content.size() ? static_cast<uint8_t>(t.content[depth]) : -1;
    };
    const int wanted = static_cast<uint8_t>(text[depth]);
    begin =
        std::partition_point(begin, end, [&](const AddedToken& t) { return byte_of(t) < wanted; });
    end =
        std::partition_point(begin, end, [&](const AddedToken& t) { return byte_of(t) == wanted; });
    if (begin != end && begin->content.size() == depth + 1) found = &*begin;
  }
  return found;
}

bool AddedTokenFinder::split(std::string_view text, bool parse_special,
                             const std::function<bool(std::string_view)>& on_text,
                             const std::function<bool(int32_t)>& on_token) const {
  size_t done = 0;  // everything before it was handed out
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    if (!starts_token_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;  // a match that is turned down is passed over whole
    if (token->special && !parse_special) continue;
    if (token->single_word && touches_word(text.substr(0, begin), text.substr(end))) continue;
    if (token->lstrip) begin -= trailing_space(text.substr(done, begin - done));
    if (token->rstrip) end += leading_space(text.substr(end));
    if (begin > done && !on_text(text.substr(done, begin - done))) return false;
    if (!on_token(token->id)) return false;
    done = at = end;
  }
  return done >= text.size() || on_text(text.substr(done));
}

}  // namespace tandem::text
