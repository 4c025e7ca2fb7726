#include <algorithm>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "text/bpe_tokenizer.h"
#include "text/tokenizer_class.h"

namespace tandem::text {
namespace {

[[noreturn]] void refuse_class(const TokenizerConfig& config, const std::string& where) {
  std::string found = "tokenizer_config.json and config.json name none";
  if (!config.tokenizer_class.empty())
    found = fmt::format("the class '{}' is not supported with vocab.json and merges.txt",
                        config.tokenizer_class);
  else if (!config.model_type.empty())
    found = fmt::format("the model type '{}' is not supported with vocab.json and merges.txt",
                        config.model_type);
  throw input_error(where, "expected a known tokenizer class: {}", found)
      .hint(
          "in tokenizer_config.json, set {\"tokenizer_class\": \"GPT2Tokenizer\"} or "
          "\"Qwen2Tokenizer\"; other models need tokenizer.json");
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
  const TokenizerClass tokenizer_class = class_of(config, true);
  if (!is_byte_level(tokenizer_class)) refuse_class(config, where);
  const std::string folder = where.empty() ? "" : where + "/";
  BpeSpec spec;
  spec.vocab = read_vocab(vocab_json, folder + "vocab.json");
  spec.merges = read_merges(merges, folder + "merges.txt");
  apply_class(spec, tokenizer_class, config, where);
  const TokenizerConfig completed = with_class_tokens(config, tokenizer_class);
  complete_added_tokens(spec, completed);
  resolve_bos_eos(spec, completed);
  if (config.add_bos_token.value_or(false)) {
    if (!spec.bos)
      throw input_error(where, "'add_bos_token' is true, but the vocabulary has no BOS token");
    spec.prefix = {*spec.bos};
  }
  return make_bpe_tokenizer(std::move(spec), where);
}

}  // namespace tandem::text
