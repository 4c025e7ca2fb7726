#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <unordered_set>

#include "base/error.h"
#include "io/quote.h"
#include "text/sentencepiece_model.h"
#include "text/sentencepiece_windows.h"
#include "text/tokenizer_class.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::unique_ptr<sentencepiece::SentencePieceProcessor> parse_model(const std::string& bytes,
                                                                   const std::string& where) {
  auto model = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = model->LoadFromSerializedProto(bytes);
  if (!status.ok() || model->GetPieceSize() == 0)
    throw input_error(where, "not a SentencePiece model: {}",
                      status.ok() ? "it has no pieces" : io::quote(status.message(), 200))
        .hint("the file is truncated or a Git LFS pointer; download it again");
  return model;
}

/// The library does the cutting; BOS, control tokens in the text and decoding are ours.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(TokenizerParts parts,
                         std::unique_ptr<sentencepiece::SentencePieceProcessor> model,
                         bool prefixes_first_part, const CheckedSentencePieceModel& checked)
      : Tokenizer(std::move(parts)),
        model_(std::move(model)),
        prefixes_first_part_(prefixes_first_part) {
    for (const std::string& piece : checked.user_defined)
      user_defined_.insert(model_->PieceToId(piece));
    if (!checked.in_windows) return;
    size_t longest = 1;
    for (int id = 0; id < model_->GetPieceSize(); ++id)
      longest = std::max(longest, model_->IdToPiece(id).size());
    windows_.emplace(longest);
  }

 private:
  bool encode_part(std::string_view part, Place place, bool parse_special,
                   IdList& out) const override {
    const size_t n_before = out.ids.size();
    const bool all = append_ids(part, place, out);
    if (!parse_special && !user_defined_.empty()) join_control_pieces(out.ids, n_before);
    return all;
  }

  bool append_ids(std::string_view part, Place place, IdList& out) const {
    const auto& first = model_of(place);
    // The mark is put before the text by hand where the model puts none.
    const bool marked =
        prefixes_first_part_ && place == Place::begins_text && !begins_with_mark(part);
    if (windows_ && part.size() > SentencePieceWindows::kWindow) {
      const auto end = windows_->apply(first, model_of(Place::after_text),
                                       marked ? kSpaceMark : std::string_view(), part, out);
      if (end != SentencePieceWindows::End::uncertain)
        return end == SentencePieceWindows::End::whole;
    }
    std::vector<int> part_ids;
    const auto status = marked ? first.Encode(std::string(kSpaceMark).append(part), &part_ids)
                               : first.Encode(part, &part_ids);
    if (!status.ok())
      throw input_error("text", "SentencePiece: {}", io::quote(status.message(), 200));
    out.ids.insert(out.ids.end(), part_ids.begin(), part_ids.end());
    return out.admit(part.size(), 0);
  }

  /// Transformers finds what stands alone between user-defined pieces in the vocabulary as a whole,
  /// and so control pieces although they are to be split.
  void join_control_pieces(std::vector<int32_t>& ids, size_t begin) const {
    constexpr size_t kLongest = 64;  // bytes of a control piece
    size_t kept = begin;
    for (size_t i = begin; i < ids.size();) {
      size_t end = i;
      std::string text;
      for (; end < ids.size() && !user_defined_.contains(ids[end]); ++end)
        if (text.size() <= kLongest) text += token_bytes(ids[end]);
      const auto whole = id_of(text);
      if (end > i && whole && is_special(*whole) && *whole < model_->GetPieceSize())
        ids[kept++] = *whole;
      else
        while (i < end) ids[kept++] = ids[i++];
      if (end < ids.size()) ids[kept++] = ids[end];
      i = end + 1;
    }
    ids.resize(kept);
  }

  /// True if the text, normalised, begins with a space. One of its leading spaces and the first
  /// characters suffice.
  bool begins_with_mark(std::string_view text) const {
    constexpr size_t kLongestRule = 64;  // bytes that a character map looks at, with a margin
    const size_t n_spaces = std::min(text.find_first_not_of(' '), text.size());
    if (n_spaces > 1) text.remove_prefix(n_spaces - 1);
    size_t end = std::min(kLongestRule, text.size());
    while (end < text.size() && continues_char(text[end])) ++end;
    std::vector<std::string> pieces;
    return model_->Encode(text.substr(0, end), &pieces).ok() && !pieces.empty() &&
           pieces[0].starts_with(kSpaceMark);
  }

  /// One that puts nothing in front of text that goes on; made when such text first comes.
  const sentencepiece::SentencePieceProcessor& model_of(Place place) const {
    if (prefixes_first_part_ || !drops_leading_space() || place != Place::after_text)
      return *model_;
    std::call_once(once_, [this] {
      unprefixed_ =
          parse_model(without_dummy_prefix(model_->serialized_model_proto()), "tokenizer.model");
    });
    return *unprefixed_;
  }

  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
  // The model's own dummy prefix is off, and only the start of a text gets one ("legacy": false).
  bool prefixes_first_part_;
  std::unordered_set<int32_t> user_defined_;
  std::optional<SentencePieceWindows> windows_;
  mutable std::once_flag once_;
  mutable std::unique_ptr<sentencepiece::SentencePieceProcessor> unprefixed_;
};

/// LlamaTokenizer takes nothing but the pieces from the model; rules are ranked by the id of the
/// piece that they make, not by its score.
std::vector<std::pair<std::string, std::string>> merges_of(
    const std::vector<std::pair<std::string, int32_t>>& vocab) {
  std::unordered_set<std::string_view> pieces;
  for (const auto& [piece, id] : vocab) pieces.insert(piece);
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& [piece, id] : vocab)
    for (size_t i = utf8_length(piece[0]); i < piece.size(); i += utf8_length(piece[i])) {
      const std::string_view left = std::string_view(piece).substr(0, i),
                             right = std::string_view(piece).substr(i);
      if (pieces.contains(left) && pieces.contains(right)) merges.emplace_back(left, right);
    }
  return merges;
}

std::unique_ptr<Tokenizer> make_llama(const sentencepiece::SentencePieceProcessor& model,
                                      const std::vector<std::string>& user_defined,
                                      TokenizerClass tokenizer_class, const TokenizerConfig& config,
                                      const std::string& where) {
  const TokenizerConfig completed = with_class_tokens(config, tokenizer_class);
  BpeSpec spec;
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    spec.vocab.emplace_back(model.IdToPiece(id), id);
    if (model.IsControl(id))
      spec.added.push_back({.content = model.IdToPiece(id), .id = id, .special = true});
  }
  for (const std::string& piece : user_defined)
    spec.added.push_back({.content = piece, .id = model.PieceToId(piece)});
  spec.merges = merges_of(spec.vocab);
  apply_class(spec, tokenizer_class, completed, where);
  complete_added_tokens(spec, completed);
  resolve_bos_eos(spec, completed);
  if (config.add_bos_token.value_or(tokenizer_class == TokenizerClass::code_llama) && spec.bos)
    spec.prefix = {*spec.bos};
  return make_bpe_tokenizer(std::move(spec), where);
}

/// Whether encoding puts a space in front of each text that it is given.
bool adds_dummy_prefix(const sentencepiece::SentencePieceProcessor& model) {
  std::vector<std::string> pieces;
  return model.Encode("a", &pieces).ok() && !pieces.empty() && pieces[0].starts_with(kSpaceMark);
}

std::string bytes_of_piece(const sentencepiece::SentencePieceProcessor& model, int id) {
  const std::string& piece = model.IdToPiece(id);
  if (model.IsControl(id) || model.IsUnknown(id)) return piece;
  unsigned byte = 0;
  if (model.IsByte(id) && std::sscanf(piece.c_str(), "<0x%2X>", &byte) == 1)
    return {static_cast<char>(byte)};
  std::string bytes;
  for (size_t i = 0; i < piece.size();) {
    const bool is_mark = std::string_view(piece).substr(i).starts_with(kSpaceMark);
    bytes += is_mark ? ' ' : piece[i];
    i += is_mark ? kSpaceMark.size() : 1;
  }
  return bytes;
}

/// Control pieces of the model, then what the configuration adds beyond the model's ids.
void collect_tokens(TokenizerParts& parts, const sentencepiece::SentencePieceProcessor& model,
                    const TokenizerConfig& config, const std::string& where) {
  const int n_pieces = model.GetPieceSize();
  std::unordered_set<std::string> known;
  for (int id = 0; id < n_pieces; ++id) {
    parts.bytes.push_back(bytes_of_piece(model, id));
    if (!model.IsControl(id) && !model.IsUnknown(id)) continue;
    parts.added.push_back({.content = model.IdToPiece(id), .id = id, .special = true});
    parts.added.back().rstrip =
        std::ranges::find(config.trimmed_after, model.IdToPiece(id)) != config.trimmed_after.end();
    known.insert(model.IdToPiece(id));
  }
  const std::unordered_set<std::string> special(config.special_tokens.begin(),
                                                config.special_tokens.end());
  const size_t limit = parts.bytes.size() + config.added.size() + (size_t{1} << 16);
  for (AddedToken token : config.added) {
    if (known.contains(token.content)) continue;
    const auto i = static_cast<size_t>(token.id);
    if (token.id < n_pieces && model.IdToPiece(token.id) != token.content)
      throw input_error(where, "the added token {} has the id {} of the piece {}",
                        io::quote(token.content), token.id, io::quote(model.IdToPiece(token.id)));
    if (i >= limit)
      throw input_error(where, "the added token {} has the id {}, far beyond the {} pieces",
                        io::quote(token.content), token.id, n_pieces);
    if (i >= parts.bytes.size()) parts.bytes.resize(i + 1);
    if (token.id >= n_pieces && !parts.bytes[i].empty() && parts.bytes[i] != token.content)
      throw input_error(where, "the added tokens {} and {} have the same id {}",
                        io::quote(parts.bytes[i]), io::quote(token.content), token.id);
    parts.bytes[i] = token.content;
    token.special = token.special || special.contains(token.content);
    token.normalized = false;  // the library normalises only what lies between added tokens
    known.insert(token.content);
    parts.added.push_back(std::move(token));
  }
  for (const std::string& content : config.special_tokens) {
    if (!known.insert(content).second) continue;
    const int piece = model.PieceToId(content);
    const int32_t id = model.IdToPiece(piece) == content
                           ? piece
                           : next_id(parts.added, static_cast<size_t>(n_pieces));
    const auto i = static_cast<size_t>(id);
    if (i >= parts.bytes.size()) parts.bytes.resize(i + 1);
    parts.bytes[i] = content;
    parts.added.push_back({.content = content, .id = id, .special = true});
  }
}

std::optional<int32_t> resolve(const TokenizerParts& parts, const std::optional<std::string>& name,
                               int id_of_model) {
  if (name) {
    const auto token = std::ranges::find(parts.added, *name, &AddedToken::content);
    if (token != parts.added.end()) return token->id;
  }
  return id_of_model >= 0 ? std::optional<int32_t>(id_of_model) : std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_sentencepiece(std::string_view model_bytes,
                                                        const TokenizerConfig& config,
                                                        const std::string& where) {
  const CheckedSentencePieceModel checked = checked_sentencepiece_model(model_bytes, where);
  auto model = parse_model(checked.bytes, where);
  const TokenizerClass tokenizer_class = class_of(config, false);
  if (tokenizer_class == TokenizerClass::llama || tokenizer_class == TokenizerClass::code_llama)
    return make_llama(*model, checked.user_defined, tokenizer_class, config, where);
  TokenizerParts parts;
  parts.drops_leading_space = adds_dummy_prefix(*model);
  collect_tokens(parts, *model, config, where);
  parts.bos = resolve(parts, config.bos_token, model->bos_id());
  parts.eos = resolve(parts, config.eos_token, model->eos_id());
  parts.splits_special = config.split_special_tokens.value_or(false);
  // Without tokenizer.json, transformers 5 adds BOS only where this key is true.
  if (config.add_bos_token.value_or(false) && parts.bos) parts.prefix = {*parts.bos};
  // "legacy": true, the default, lets the library put its dummy prefix before every part between
  // control tokens; false puts one before the start of the text that does not begin with a space.
  const bool prefixes_first_part = parts.drops_leading_space && !config.legacy.value_or(true);
  if (prefixes_first_part) model = parse_model(without_dummy_prefix(checked.bytes), where);
  return std::make_unique<SentencePieceTokenizer>(std::move(parts), std::move(model),
                                                  prefixes_first_part, checked);
}

}  // namespace tandem::text
