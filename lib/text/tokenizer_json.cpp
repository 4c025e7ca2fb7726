#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "text/bpe_tokenizer.h"
#include "text/tokenizer_class.h"

namespace tandem::text {
namespace {

using io::Json;

constexpr size_t kMaxSteps = 16;  // of a Sequence, whose steps are applied recursively

/// A pattern that matches just `text`.
std::string literal_regex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) < 0x80 && std::isalnum(static_cast<uint8_t>(c)) == 0)
      pattern += '\\';
    pattern += c;
  }
  return pattern;
}

/// The parts of tokenizer.json that say how text is cut and encoded. Names are those of the file.
class Reader {
 public:
  Reader(const TokenizerConfig& config, TokenizerClass tokenizer_class, const std::string& where,
         BpeSpec& spec)
      : config_(config), class_(tokenizer_class), where_(where), spec_(spec) {}

  void read(const Json& root) {
    read_model(io::get_object(root, "model", where_));
    if (const Json* added = io::find_array(root, "added_tokens", where_))
      for (const Json& entry : *added) {
        AddedToken token = parse_added_token(entry, where_);
        io::get_int(entry, "id", where_);  // has to be there
        token.id = parse_id(entry["id"], token.content, where_);
        spec_.added.push_back(std::move(token));
      }
    if (class_ == TokenizerClass::from_file)
      read_steps(root);
    else
      apply_class(spec_, class_, config_, where_);
    complete_added_tokens(spec_, config_);
    if (const Json* step = io::find_object(root, "post_processor", where_))
      read_post_processor(*step, 0);
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw input_error(where_, "{} is not supported", what)
        .hint(
            "use the checkpoint's tokenizer.model instead of tokenizer.json, or tokenise elsewhere "
            "and pass ids with --prompt-ids");
  }

  void read_steps(const Json& root) {
    if (const Json* step = io::find_object(root, "normalizer", where_)) read_normalizer(*step, 0);
    if (const Json* step = io::find_object(root, "pre_tokenizer", where_))
      read_pre_tokenizer(*step, 0);
    if (spec_.alphabet == BpeAlphabet::bytes && !has_byte_level_)
      unsupported("a BPE model with neither the ByteLevel pre-tokeniser nor byte_fallback");
    if (const Json* decoder = io::find_object(root, "decoder", where_)) read_decoder(*decoder, 0);
  }

  /// Runs `read_one` on the steps of a Sequence, which the file keeps under `key`.
  template <class ReadOne>
  void for_each_step(const Json& sequence, const char* key, size_t depth, const ReadOne& read_one) {
    const Json& steps = io::get_array(sequence, key, where_);
    if (depth > 0 || steps.size() > kMaxSteps)
      unsupported(
          fmt::format("a '{}' list nested in another or with more than {} steps", key, kMaxSteps));
    for (const Json& step : steps) read_one(step);
  }

  void read_model(const Json& model) {
    // Files from before the field existed hold BPE if they hold merges.
    const std::string type = io::find_string(model, "type", where_).value_or("BPE");
    if (type != "BPE") unsupported(fmt::format("the tokenizer model {}", io::quote(type)));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const auto value = io::find_string(model, key, where_); value && !value->empty())
        unsupported(fmt::format("'{}' = {}", key, io::quote(*value)));
    if (io::find_double(model, "dropout", where_).value_or(0.0) != 0.0)
      unsupported("'dropout', which makes ids random,");
    spec_.ignore_merges = io::find_bool(model, "ignore_merges", where_).value_or(false);
    spec_.fuse_unk = io::find_bool(model, "fuse_unk", where_).value_or(false);
    spec_.byte_fallback = io::find_bool(model, "byte_fallback", where_).value_or(false);
    spec_.unk_token = io::find_string(model, "unk_token", where_).value_or("");
    if (spec_.byte_fallback) spec_.alphabet = BpeAlphabet::characters;
    for (const auto& [piece, id] : io::get_object(model, "vocab", where_).items())
      spec_.vocab.emplace_back(piece, parse_id(id, piece, where_));
    for (const Json& rule : io::get_array(model, "merges", where_)) {
      if (!rule.is_array())
        spec_.merges.push_back(split_merge(io::as_string(rule, "a merge", where_), where_));
      else if (rule.size() == 2)
        spec_.merges.emplace_back(io::as_string(rule[0], "a piece of a merge", where_),
                                  io::as_string(rule[1], "a piece of a merge", where_));
      else
        throw input_error(where_, "expected a merge of two pieces, found {}", io::describe(rule));
    }
  }

  void read_normalizer(const Json& step, size_t depth) {
    const std::string type = io::get_string(step, "type", where_);
    NormalizerStep out{NormalizerStep::Kind::unicode, NormalForm::nfc, "", ""};
    if (type == "Sequence")
      return for_each_step(step, "normalizers", depth,
                           [&](const Json& s) { read_normalizer(s, depth + 1); });
    if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
      out.form = type == "NFC"    ? NormalForm::nfc
                 : type == "NFD"  ? NormalForm::nfd
                 : type == "NFKC" ? NormalForm::nfkc
                                  : NormalForm::nfkd;
    } else if (type == "Prepend") {
      out.kind = NormalizerStep::Kind::prepend;
      out.text = io::find_string(step, "prepend", where_).value_or("");
    } else if (type == "Replace") {
      out.kind = NormalizerStep::Kind::replace;
      out.text = literal_pattern(step);
      out.replacement = io::find_string(step, "content", where_).value_or("");
    } else {
      unsupported(fmt::format("the normalizer {}", io::quote(type)));
    }
    spec_.normalizer.push_back(std::move(out));
  }

  std::string literal_pattern(const Json& step) const {
    if (const Json* pattern = io::find_object(step, "pattern", where_))
      if (const auto text = io::find_string(*pattern, "String", where_)) return *text;
    unsupported("the normalizer 'Replace' with a regular expression");
  }

  void read_pre_tokenizer(const Json& step, size_t depth) {
    const std::string type = io::get_string(step, "type", where_);
    if (type == "Sequence")
      for_each_step(step, "pretokenizers", depth,
                    [&](const Json& s) { read_pre_tokenizer(s, depth + 1); });
    else if (type == "Split")
      read_split(step);
    else if (type == "Digits")
      add_split(io::find_bool(step, "individual_digits", where_).value_or(false) ? R"(\p{N})"
                                                                                 : R"(\p{N}+)");
    else if (type == "ByteLevel")
      read_byte_level(step);
    else if (type == "Metaspace")
      read_metaspace(step);
    else
      unsupported(fmt::format("the pre-tokeniser {}", io::quote(type)));
  }

  void add_split(std::string_view pattern, PreTokenizer::Keep keep = PreTokenizer::Keep::both) {
    spec_.pre_tokenizer.add_split(pattern, keep, where_);
  }

  void read_split(const Json& step) {
    const Json& pattern = io::get_object(step, "pattern", where_);
    const auto regex = io::find_string(pattern, "Regex", where_);
    const auto text = io::find_string(pattern, "String", where_);
    if (!regex && !text)
      throw input_error(where_,
                        "expected 'Regex' or 'String' in the 'pattern' of a Split, found neither");
    const std::string behavior = io::find_string(step, "behavior", where_).value_or("");
    const bool invert = io::find_bool(step, "invert", where_).value_or(false);
    const bool previous = behavior == "MergedWithPrevious", next = behavior == "MergedWithNext";
    if (behavior != "Isolated" && behavior != "Removed" && (invert || (!previous && !next)))
      unsupported(fmt::format("the Split behavior {}{}", io::quote(behavior),
                              invert ? " with 'invert'" : ""));
    const auto keep = behavior == "Isolated" ? PreTokenizer::Keep::both
                      : previous             ? PreTokenizer::Keep::with_previous
                      : next                 ? PreTokenizer::Keep::with_next
                      : invert               ? PreTokenizer::Keep::matches
                                             : PreTokenizer::Keep::gaps;
    add_split(regex ? *regex : literal_regex(*text), keep);
  }

  void read_byte_level(const Json& step) {
    const bool use_regex = io::find_bool(step, "use_regex", where_).value_or(true);
    if (io::find_bool(step, "add_prefix_space", where_).value_or(true)) {
      const bool cut_before = !spec_.pre_tokenizer.empty();
      if (cut_before && use_regex)
        unsupported("'add_prefix_space' with 'use_regex' after another pre-tokeniser");
      spec_.space_prefix = cut_before ? SpacePrefix::every_word : SpacePrefix::every_part;
    }
    if (use_regex) add_split(kGpt2Pattern);
    has_byte_level_ = true;
  }

  void read_metaspace(const Json& step) {
    if (io::find_string(step, "replacement", where_).value_or("") != "\xE2\x96\x81")
      unsupported("the pre-tokeniser 'Metaspace' with another replacement than U+2581");
    spec_.normalizer.push_back({NormalizerStep::Kind::replace, {}, " ", "\xE2\x96\x81"});
    const auto scheme = io::find_string(step, "prepend_scheme", where_);
    const bool prefixes = io::find_bool(step, "add_prefix_space", where_).value_or(true);
    const std::string chosen = scheme.value_or(prefixes ? "always" : "never");
    spec_.space_prefix = chosen == "never"   ? SpacePrefix::none
                         : chosen == "first" ? SpacePrefix::first_part
                                             : SpacePrefix::every_part;
    if (io::find_bool(step, "split", where_).value_or(true))
      add_split("\xE2\x96\x81[^\xE2\x96\x81]*|[^\xE2\x96\x81]+");  // leaves no gap
  }

  /// Decoding follows from the pieces; only the dropped leading space has to be known.
  void read_decoder(const Json& step, size_t depth) {
    const std::string type = io::get_string(step, "type", where_);
    if (type == "Sequence")
      for_each_step(step, "decoders", depth, [&](const Json& s) { read_decoder(s, depth + 1); });
    else if (type == "Strip")
      spec_.drops_leading_space = io::find_int(step, "start", where_).value_or(0) > 0;
    else if (type == "Metaspace")
      spec_.drops_leading_space = spec_.space_prefix != SpacePrefix::none;
  }

  /// BOS and anything else that the template puts in front of a single text.
  void read_post_processor(const Json& step, size_t depth) {
    const std::string type = io::get_string(step, "type", where_);
    if (type == "Sequence")
      return for_each_step(step, "processors", depth,
                           [&](const Json& s) { read_post_processor(s, depth + 1); });
    if (type == "ByteLevel") return;  // moves offsets only
    if (type != "TemplateProcessing")
      unsupported(fmt::format("the post-processor {}", io::quote(type)));
    for (const Json& item : io::get_array(step, "single", where_)) {
      if (io::find_object(item, "Sequence", where_) != nullptr) break;
      const std::string content =
          io::get_string(io::get_object(item, "SpecialToken", where_), "id", where_);
      const auto token = std::ranges::find(spec_.added, content, &AddedToken::content);
      if (token == spec_.added.end())
        throw input_error(where_, "the template names the token {}, which is not an added token",
                          io::quote(content));
      spec_.prefix.push_back(token->id);
    }
  }

  const TokenizerConfig& config_;
  const TokenizerClass class_;
  const std::string& where_;
  BpeSpec& spec_;
  bool has_byte_level_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view json, const TokenizerConfig& config,
                                               const std::string& where) {
  const TokenizerClass tokenizer_class =
      class_of(config, json.find("\"ByteLevel\"") != std::string_view::npos);
  const TokenizerConfig completed = with_class_tokens(config, tokenizer_class);
  BpeSpec spec;
  Reader(completed, tokenizer_class, where, spec).read(io::parse_json(json, where));
  resolve_bos_eos(spec, completed);
  // Transformers 5 ignores "add_bos_token" where this file exists; only CodeLlamaTokenizer has its
  // own, which is true.
  if (tokenizer_class == TokenizerClass::code_llama && spec.bos) spec.prefix = {*spec.bos};
  if (!spec.bos && !spec.prefix.empty()) spec.bos = spec.prefix.front();
  return make_bpe_tokenizer(std::move(spec), where);
}

}  // namespace tandem::text
