#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/gguf.h"
#include "io/quote.h"
#include "text/bpe_tokenizer.h"
#include "text/gguf_tokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/word_rules.h"

namespace tandem::text {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 24;
constexpr const char* kSingleDigits = R"(\p{N})";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// A way of cutting text into words, by key `tokenizer.ggml.pre`.
/// source   llama.cpp, llama-vocab.cpp
struct WordRule {
  std::array<std::string_view, 8> names;
  std::vector<const char*> patterns;
  bool ignores_merges = false, adds_bos = false, normalizes = false;
};

const std::vector<WordRule>& word_rules() {
  static const std::vector<WordRule> rules = {
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"}, {kLlama3Pattern}, true, true},
      {{"dbrx"}, {kLlama3Pattern}},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {kQwen2Pattern}, false, false, true},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"},
       {kSingleDigits, kGpt2Pattern}},
      {{"gpt-2", "phi-2", "olmo", "jina-es", "exaone4"}, {kGpt2Pattern}},
      {{"tekken"}, {kTekkenPattern}, true, true},
      {{"default", ""},
       {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", R"([0-9][0-9][0-9])"}}};
  return rules;
}

std::string with_marks(std::string_view text) {
  std::string marked;
  for (const char c : text) marked += c == ' ' ? "\u2581" : std::string(1, c);
  return marked;
}

/// The tokenizer of one file, by its keys.
class GgufReader {
 public:
  GgufReader(const io::Gguf& file, std::vector<std::string>& warnings)
      : file_(file), warnings_(warnings), types_(file.ints("tokenizer.ggml.token_type")) {
    for (const std::string_view token : file.strings("tokenizer.ggml.tokens"))
      tokens_.push_back(token.empty() ? fmt::format("[EMPTY_{}]", tokens_.size())
                                      : std::string(token));
    if (tokens_.empty()) refuse("'tokenizer.ggml.tokens' is missing or empty");
    if (types_.empty()) types_.assign(tokens_.size(), kNormal);
    if (types_.size() != tokens_.size())
      refuse(fmt::format("'tokenizer.ggml.token_type' has {} items, expected {}", types_.size(),
                         tokens_.size()));
    for (size_t i = 0; i < types_.size(); ++i) {
      if (types_[i] == kUndefined) types_[i] = kNormal;
      if (types_[i] < kNormal || types_[i] > kByte)
        refuse(
            fmt::format("'tokenizer.ggml.token_type': expected numbers from 0 to 6, found {} for "
                        "token {}",
                        types_[i], i));
    }
  }

  std::unique_ptr<Tokenizer> read() {
    if (const auto json = file_.find_string("tokenizer.huggingface.json"))
      return tokenizer_from_json(*json, config(false),
                                 file_.where() + ": tokenizer.huggingface.json");
    const std::string_view kind = file_.find_string("tokenizer.ggml.model").value_or("");
    if (kind == "gpt2") return byte_level();
    if (kind == "llama") return sentencepiece();
    throw input_error(file_.where(), "tokenizer {} is not supported", io::quote(kind))
        .hint("supported: gpt2 (byte-level BPE), llama (SentencePiece); ids go in by --prompt-ids");
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw input_error(file_.where(), "{}", what)
        .hint("convert the model again with a current llama.cpp");
  }

  /// absent   the id that a missing key has
  std::optional<int32_t> id(const char* name, std::optional<int32_t> absent = {}) const {
    const auto found = file_.find_int(fmt::format("tokenizer.ggml.{}_token_id", name), 0, kMostIds);
    if (found && *found >= std::ssize(tokens_))
      refuse(fmt::format("the id {} of {} exceeds the {} tokens", *found, name, tokens_.size()));
    return found ? std::optional(static_cast<int32_t>(*found)) : absent;
  }

  /// Special tokens as tokenizer_config.json would name them.
  /// pieces   SentencePiece, whose ids have usual values
  TokenizerConfig config(bool pieces) const {
    TokenizerConfig c;
    const auto name = [&](const char* key, int32_t usual) -> std::optional<std::string> {
      const auto found = id(key, pieces ? std::optional(usual) : std::nullopt);
      if (!found || *found >= std::ssize(tokens_)) return std::nullopt;
      return tokens_[static_cast<size_t>(*found)];
    };
    c.bos_token = name("bos", 1);
    c.eos_token = name("eos", 2);
    c.unk_token = name("unknown", 0);
    c.add_bos_token = file_.find_bool("tokenizer.ggml.add_bos_token").value_or(pieces);
    return c;
  }

  const WordRule& word_rule() const {
    const std::string_view pre = file_.find_string("tokenizer.ggml.pre").value_or("");
    std::vector<std::string_view> known;
    for (const WordRule& rule : word_rules())
      for (const std::string_view name : rule.names) {
        if (name.data() == nullptr) continue;
        if (name == pre) return rule;
        if (!name.empty()) known.push_back(name);
      }
    throw input_error(file_.where(), "tokenizer.ggml.pre {} is not supported", io::quote(pre))
        .hint(fmt::format("supported: {}", fmt::join(known, ", ")));
  }

  std::unique_ptr<Tokenizer> byte_level() {
    const WordRule& rule = word_rule();
    if (&rule == &word_rules().back())
      warnings_.push_back(fmt::format(
          "{}: its tokenizer does not say how it cuts text into words; an old converter may have "
          "left it out, and then ids are wrong",
          file_.where()));
    BpeSpec spec;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const auto number = static_cast<int32_t>(i);
      const bool control = types_[i] == kControl;
      if (control || types_[i] == kUserDefined)
        spec.added.push_back({.content = tokens_[i], .id = number, .special = control});
      else if (types_[i] != kUnused)
        spec.vocab.emplace_back(tokens_[i], number);
    }
    for (const std::string_view merge : file_.strings("tokenizer.ggml.merges")) {
      const size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos)
        refuse(fmt::format("merge {} has no space", io::quote(merge)));
      spec.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
    if (spec.merges.empty()) refuse("'tokenizer.ggml.merges' is missing or empty");
    spec.ignore_merges = rule.ignores_merges;
    if (rule.normalizes)
      spec.normalizer.push_back({NormalizerStep::Kind::unicode, NormalForm::nfc, "", ""});
    for (const char* pattern : rule.patterns)
      spec.pre_tokenizer.add_split(pattern, PreTokenizer::Keep::both, file_.where());
    if (file_.find_bool("tokenizer.ggml.add_space_prefix").value_or(false))
      spec.space_prefix = SpacePrefix::every_part;
    spec.bos = id("bos");
    spec.eos = id("eos");
    if (!spec.eos) refuse("'tokenizer.ggml.eos_token_id' is missing");
    if (file_.find_bool("tokenizer.ggml.add_bos_token").value_or(rule.adds_bos)) {
      if (!spec.bos) refuse("'tokenizer.ggml.bos_token_id' is missing, but texts begin with BOS");
      spec.prefix = {*spec.bos};
    }
    return make_bpe_tokenizer(std::move(spec), file_.where());
  }

  std::unique_ptr<Tokenizer> sentencepiece() const {
    const std::vector<float> scores = file_.floats("tokenizer.ggml.scores");
    if (scores.size() != tokens_.size())
      refuse(fmt::format("'tokenizer.ggml.scores' has {} items, expected {}", scores.size(),
                         tokens_.size()));
    std::vector<SentencePiece> pieces;
    // Converters write spaces into the user's tokens, where SentencePiece has U+2581.
    std::vector<std::string> texts = tokens_;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (types_[i] == kUserDefined) texts[i] = with_marks(texts[i]);
      pieces.push_back({texts[i], scores[i], static_cast<uint64_t>(types_[i])});
    }
    TokenizerConfig c = config(true);
    if (file_.find_string("general.architecture") == "phi3") c.trimmed_after = phi3_trimmed();
    const bool prefix = file_.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
    return tokenizer_from_sentencepiece(sentencepiece_model(pieces, prefix), c, file_.where());
  }

  /// Phi-3's control tokens take the white space after them along, which no key says.
  /// source   llama.cpp, llama-vocab.cpp
  std::vector<std::string> phi3_trimmed() const {
    constexpr std::array kOthers = {"<unk>", "<s>", "<|endoftext|>"};
    std::vector<std::string> trimmed;
    for (size_t i = 0; i < tokens_.size(); ++i)
      if (types_[i] == kControl && std::ranges::find(kOthers, tokens_[i]) == kOthers.end())
        trimmed.push_back(tokens_[i]);
    return trimmed;
  }

  const io::Gguf& file_;
  std::vector<std::string>& warnings_;
  std::vector<std::string> tokens_;
  std::vector<int64_t> types_;
};

}  // namespace

std::vector<std::string_view> gguf_word_rules(bool ignores_merges) {
  std::vector<std::string_view> names;
  for (const WordRule& rule : word_rules())
    if (rule.ignores_merges == ignores_merges && rule.names.front() != "default")
      names.push_back(rule.names.front());
  return names;
}

bool has_tokenizer(const io::Gguf& file) {
  const std::string_view kind = file.find_string("tokenizer.ggml.model").value_or("none");
  return kind != "none" && kind != "no_vocab";
}

std::unique_ptr<Tokenizer> tokenizer_from_gguf(const io::Gguf& file,
                                               std::vector<std::string>& warnings) {
  return GgufReader(file, warnings).read();
}

}  // namespace tandem::text
