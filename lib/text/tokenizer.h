#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"

namespace tandem::io {
class Gguf;
}

namespace tandem::text {

struct TokenizerConfig;

/// The ids of a text while they are found, with a limit on their number.
struct IdList {
  std::vector<int32_t> ids{};
  size_t most = SIZE_MAX;
  size_t at_least = 0;    // ids that the text has, once that is known to be above `most`; else 0
  size_t bytes_done = 0;  // of the part that was read last when it became known

  /// Returns true if the limit holds these ids and the `n_more` that the bytes after `n_done` have
  /// at least.
  bool admit(size_t n_done, size_t n_more) {
    if (ids.size() <= most && n_more <= most - ids.size()) return true;
    at_least = ids.size() + n_more;
    bytes_done = n_done;
    return false;
  }
};

struct EncodeOptions {
  bool add_bos = true;        // put in front what the tokenizer's own rules ask for (often BOS)
  bool parse_special = true;  // special tokens in the text become their ids
};

/// The ids of a text, or how far counting them went.
struct LimitedIds {
  std::vector<int32_t> ids;  // of the whole text, if it is within the limit
  size_t bytes = 0;          // of the text that `ids` are of; scaled where a normaliser changes it
  size_t at_least = 0;       // ids of the whole text, exact if it is within the limit
  bool fits = true;
};

/// The ids of a text that is cut into pieces.
struct CutIds {
  std::vector<int32_t> ids;
  std::vector<size_t> before;  // ids before each cut
};

/// What every kind of tokenizer is built from.
struct TokenizerParts {
  std::vector<std::string> bytes;  // by id; empty where an id is unused
  std::vector<AddedToken> added;   // ids below bytes.size()
  std::vector<int32_t> prefix;
  std::optional<int32_t> bos, eos;
  bool drops_leading_space = false;
  bool splits_special = false;
};

/// Text to token ids and back. Immutable, shared by threads.
///
/// The ids equal those of transformers 5 (`add_special_tokens` = add_bos, `split_special_tokens` =
/// not parse_special, or as tokenizer_config.json sets it), with three deliberate exceptions: a
/// rule that appends EOS is not followed, since a prompt is continued; decoding never "cleans up"
/// spaces before punctuation, since decode(encode(x)) shall be x; and text that has no token is
/// refused where transformers drops it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// errors   kind input: invalid UTF-8 (with the offset), text of 1 GiB or more, a byte or
  ///          character that the vocabulary lacks, a token beyond id_limit()
  /// cost     near linear in time; of memory the ids, the normalised text, and, SentencePiece's
  ///          unigram models aside, little more. Word cache and buffers are kept between calls
  std::vector<int32_t> encode(std::string_view utf8, EncodeOptions options = {}) const;

  /// The same of a text that is of use only with at most `most` ids: stops as soon as it is certain
  /// that it has more, by those counted and the fewest that the rest can have.
  LimitedIds encode_within(std::string_view utf8, size_t most, EncodeOptions options = {}) const;

  /// The same with no token across a cut, so that the text before a cut has the ids that it has
  /// alone, as a prompt has before its answer is known.
  /// cuts     rising byte offsets, between characters
  CutIds encode_cut(std::string_view utf8, std::span<const size_t> cuts,
                    EncodeOptions options = {}) const;

  /// Well-formed UTF-8: bytes that form no character become U+FFFD. Ids outside the vocabulary give
  /// no text (embedding tables are often padded beyond it).
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// Raw bytes of a token, perhaps part of a character; empty for ids outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  /// The token with exactly these bytes; added tokens come first.
  std::optional<int32_t> id_of(std::string_view bytes) const;
  /// Refuses text whose ids reach `n`, the rows of a model's embedding: folders have added tokens
  /// beyond it, which do no harm until they occur. To be called before threads share the tokenizer.
  void limit_ids(int32_t n) { id_limit_ = std::min(id_limit_, n); }
  /// errors   kind input at `where`: an id beyond the limit, named with its token
  void require_known(std::span<const int32_t> ids, const std::string& where) const;
  /// Ids below this one may occur.
  int32_t id_limit() const { return id_limit_; }
  /// Largest id of a token that is not an added one, plus one.
  int32_t learned_size() const { return learned_size_; }
  /// Largest id plus one.
  int32_t vocab_size() const { return static_cast<int32_t>(bytes_.size()); }
  bool is_special(int32_t id) const;
  std::optional<int32_t> bos_id() const { return bos_; }
  std::optional<int32_t> eos_id() const { return eos_; }
  /// What EncodeOptions::add_bos puts in front; empty for models trained without (GPT-2, Qwen2).
  const std::vector<int32_t>& prefix() const { return prefix_; }
  /// Text begins with a space that only encoding put there (SentencePiece), so decoding drops it.
  bool drops_leading_space() const { return drops_leading_space_; }

 protected:
  /// What stands before a part of a text: some tokenizers put a space in front of it.
  enum class Place : uint8_t { begins_text, after_token, after_text };

  explicit Tokenizer(TokenizerParts parts);

  /// Appends the ids of a part of the text that holds no added token; false as soon as `out` does
  /// not admit them.
  virtual bool encode_part(std::string_view part, Place place, bool parse_special,
                           IdList& out) const = 0;

 private:
  /// A piece of a text up to a cut, which begins at `place`; false as encode_part.
  bool encode_piece(std::string_view piece, Place& place, const EncodeOptions& options,
                    IdList& out) const;

  std::vector<std::string> bytes_;
  std::unordered_map<std::string_view, int32_t> id_of_bytes_;  // views into bytes_
  std::vector<bool> special_;
  AddedTokenFinder finder_;  // of the tokens that are looked for in raw text
  std::vector<int32_t> prefix_;
  std::optional<int32_t> bos_, eos_;
  bool drops_leading_space_, splits_special_;
  int32_t learned_size_ = 0, id_limit_ = 0;
};

/// Reads the tokenizer of a Hugging Face model folder: tokenizer.json (byte-level BPE, or BPE with
/// byte fallback), else tokenizer.model (SentencePiece), else vocab.json + merges.txt; with
/// tokenizer_config.json, special_tokens_map.json and added_tokens.json where they exist.
/// errors   kind input: none of them found, malformed, or a kind that is not supported (by name)
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_folder);

/// The same from bytes, one function a format; `where` names the source in messages.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json, const TokenizerConfig& config,
                                               const std::string& where);
std::unique_ptr<Tokenizer> tokenizer_from_vocab_merges(std::string_view vocab_json,
                                                       std::string_view merges,
                                                       const TokenizerConfig& config,
                                                       const std::string& where);
/// False for a GGUF file whose ids have no text.
bool has_tokenizer(const io::Gguf& file);
/// A tokenizer from the metadata of a GGUF file.
/// warnings  gets a line where the file does not say how it cuts text into words
/// errors    kind input: metadata missing or malformed; a kind or a way of cutting that is not
///           known, named with those that are
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const io::Gguf& file,
                                               std::vector<std::string>& warnings);
std::unique_ptr<Tokenizer> tokenizer_from_sentencepiece(std::string_view model,
                                                        const TokenizerConfig& config,
                                                        const std::string& where);

}  // namespace tandem::text
