#include "text/tokenizer_class.h"

#include "text/word_rules.h"

namespace tandem::text {

TokenizerClass class_of(const TokenizerConfig& config, bool byte_level) {
  using enum TokenizerClass;
  // AutoTokenizer distrusts the class that published folders of these two models name.
  if (config.model_type == "mistral") return from_file;
  if (config.model_type == "qwen2") return qwen2;
  const std::string& name = config.tokenizer_class;
  if (name == "LlamaTokenizer") return byte_level ? from_file : llama;
  if (name == "CodeLlamaTokenizer") return code_llama;
  if (name == "GPT2Tokenizer" || (name.empty() && config.model_type == "gpt2")) return gpt2;
  if (name == "Qwen2Tokenizer" || (name.empty() && config.model_type == "qwen3")) return qwen2;
  if (name == "GemmaTokenizer" || (name.empty() && config.model_type.starts_with("gemma")))
    return gemma;
  return from_file;
}

bool is_byte_level(TokenizerClass tokenizer_class) {
  return tokenizer_class == TokenizerClass::gpt2 || tokenizer_class == TokenizerClass::qwen2;
}

TokenizerConfig with_class_tokens(TokenizerConfig config, TokenizerClass tokenizer_class) {
  if (tokenizer_class == TokenizerClass::from_file) return config;
  using enum TokenizerClass;
  const bool byte_level = is_byte_level(tokenizer_class);
  std::vector<std::string> named;
  const auto complete = [&](std::optional<std::string>& token, const char* name) {
    if (!token) token = name;
    named.push_back(*token);
  };
  const char* const end = "<|endoftext|>";
  if (tokenizer_class != qwen2)
    complete(config.bos_token, byte_level ? end : tokenizer_class == gemma ? "<bos>" : "<s>");
  complete(config.eos_token, byte_level ? end : tokenizer_class == gemma ? "<eos>" : "</s>");
  complete(config.unk_token, byte_level ? end : "<unk>");
  if (tokenizer_class == qwen2) complete(config.pad_token, end);
  if (tokenizer_class == gemma) {
    complete(config.pad_token, "<pad>");
    complete(config.mask_token, "<mask>");
  }
  config.special_tokens.insert(config.special_tokens.begin(), named.begin(), named.end());
  if (tokenizer_class == code_llama)
    for (const char* name : {"PRE", "MID", "SUF", "EOT"})
      config.special_tokens.push_back(std::string("\u2581<") + name + ">");
  return config;
}

void apply_class(BpeSpec& spec, TokenizerClass tokenizer_class, const TokenizerConfig& config,
                 const std::string& where) {
  using enum TokenizerClass;
  if (tokenizer_class == from_file) return;
  const bool byte_level = is_byte_level(tokenizer_class);
  const bool prefixes = tokenizer_class != gemma && config.add_prefix_space.value_or(!byte_level);
  spec.alphabet = byte_level ? BpeAlphabet::bytes : BpeAlphabet::characters;
  spec.byte_fallback = spec.fuse_unk = !byte_level;
  const bool unknown = tokenizer_class == code_llama || tokenizer_class == gemma;
  spec.unk_token = unknown ? config.unk_token.value_or("") : "";
  spec.ignore_merges = false;
  spec.normalizer.clear();
  spec.pre_tokenizer = {};
  SpacePrefix prefix = SpacePrefix::first_part;
  if (byte_level) {
    if (tokenizer_class == qwen2)
      spec.normalizer.push_back({NormalizerStep::Kind::unicode, NormalForm::nfc, "", ""});
    spec.pre_tokenizer.add_split(tokenizer_class == qwen2 ? kQwen2Pattern : kGpt2Pattern,
                                 PreTokenizer::Keep::both, where);
    // Qwen2Tokenizer adds the space after it has cut the text into words.
    prefix = tokenizer_class == qwen2 ? SpacePrefix::every_word : SpacePrefix::every_part;
  } else {
    spec.normalizer.push_back({NormalizerStep::Kind::replace, {}, " ", "\u2581"});
    if (tokenizer_class == llama && config.legacy.value_or(false)) prefix = SpacePrefix::every_part;
  }
  spec.space_prefix = prefixes ? prefix : SpacePrefix::none;
  spec.drops_leading_space = !byte_level && (prefixes || tokenizer_class == code_llama);
}

}  // namespace tandem::text
