#include <algorithm>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "text/bpe_tokenizer.h"
#include "text/merge_rules.h"

namespace tandem::text {
namespace {

/// What the classes that read vocab.json + merges.txt add to it, none of which the files say.
struct ClassRules {
  const char* tokenizer_class;
  const char* model_type;
  const char* pattern;
  bool nfc;
  const char* default_bos;  // nullptr for none
};

constexpr const char* kEndOfText = "<|endoftext|>";

const ClassRules& rules_of(const TokenizerConfig& config, const std::string& where) {
  static const ClassRules kRules[] = {
      {"GPT2Tokenizer", "gpt2", kGpt2Pattern, false, kEndOfText},
      {"Qwen2Tokenizer", "qwen2", kQwen2Pattern, true, nullptr},
  };
  for (const ClassRules& rules : kRules)
    if (config.tokenizer_class.empty() ? config.model_type == rules.model_type
                                       : config.tokenizer_class == rules.tokenizer_class)
      return rules;
  std::string found = "neither tokenizer_config.json nor config.json names the tokenizer";
  if (!config.tokenizer_class.empty())
    found = fmt::format("the class '{}' is not known for these files", config.tokenizer_class);
  else if (!config.model_type.empty())
    found = fmt::format("the model type '{}' is not known for these files", config.model_type);
  throw input_error(where, "does not say how to cut text into words: {}", found)
      .hint(
          "with vocab.json + merges.txt, tokenizer_config.json has to hold "
          "{\"tokenizer_class\": \"GPT2Tokenizer\"} or \"Qwen2Tokenizer\"; other models need their "
          "tokenizer.json");
}

std::vector<std::pair<std::string, int32_t>> read_vocab(std::string_view json,
                                                        const std::string& where) {
  std::vector<std::pair<std::string, int32_t>> vocab;
  const io::Json object = io::parse_json(json, where);
  if (!object.is_object())
    throw input_error(where, "expected a JSON object, found {}", io::describe(object));
  vocab.reserve(object.size());
  for (const auto& [piece, id] : object.items())
    vocab.emplace_back(piece, parse_id(id, piece, where));
  return vocab;
}

std::vector<std::pair<std::string, std::string>> read_merges(std::string_view text,
                                                             const std::string& where) {
  std::vector<std::pair<std::string, std::string>> merges;
  size_t n_lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++n_lines;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (n_lines == 1 && line.starts_with("#version"))) continue;
    merges.push_back(split_merge(line, fmt::format("{}:{}", where, n_lines)));
  }
  return merges;
}

}  // namespace

std::pair<std::string, std::string> split_merge(std::string_view rule, const std::string& where) {
  const size_t space = rule.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == rule.size() ||
      rule.find(' ', space + 1) != std::string_view::npos)
    throw input_error(where, "merge {}: expected two pieces with one space between them",
                      io::quote(rule));
  return {std::string(rule.substr(0, space)), std::string(rule.substr(space + 1))};
}

std::unique_ptr<Tokenizer> tokenizer_from_vocab_merges(std::string_view vocab_json,
                                                       std::string_view merges,
                                                       const TokenizerConfig& config,
                                                       const std::string& where) {
  const ClassRules& rules = rules_of(config, where);
  const std::string folder = where.empty() ? "" : where + "/";
  BpeSpec spec;
  spec.vocab = read_vocab(vocab_json, folder + "vocab.json");
  spec.merges = read_merges(merges, folder + "merges.txt");
  if (rules.nfc)
    spec.normalizer.push_back({NormalizerStep::Kind::unicode, NormalForm::nfc, "", ""});
  spec.pre_tokenizer.add_split(rules.pattern, PreTokenizer::Keep::both, where);
  if (config.add_prefix_space.value_or(false)) spec.space_prefix = SpacePrefix::every_part;
  TokenizerConfig completed = config;
  if (!completed.eos_token) completed.eos_token = kEndOfText;
  if (!completed.bos_token && rules.default_bos != nullptr) completed.bos_token = rules.default_bos;
  completed.special_tokens.push_back(kEndOfText);
  complete_added_tokens(spec, completed);
  resolve_bos_eos(spec, completed);
  if (config.add_bos_token.value_or(false)) {
    if (!spec.bos)
      throw input_error(where,
                        "'add_bos_token' is true, but there is no BOS token in the vocabulary");
    spec.prefix = {*spec.bos};
  }
  return make_bpe_tokenizer(std::move(spec), where);
}

}  // namespace tandem::text
