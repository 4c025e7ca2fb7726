#include "base/error.h"
#include "io/file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tandem::text {

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model_folder) {
  constexpr size_t kLimit = size_t{256} << 20;  // ten times the largest in use
  const auto read = [](const std::filesystem::path& path) {
    return io::read_regular_file(path, kLimit);
  };
  const auto path = [&](const char* name) { return model_folder / name; };
  const auto has = [&](const char* name) { return std::filesystem::exists(path(name)); };
  if (!std::filesystem::is_directory(model_folder))
    throw input_error(model_folder.string(), "is not a folder, expected a model folder");
  const TokenizerConfig config = load_tokenizer_config(model_folder);
  if (has("tokenizer.json"))
    return tokenizer_from_json(read(path("tokenizer.json")), config,
                               path("tokenizer.json").string());
  if (has("tokenizer.model"))
    return tokenizer_from_sentencepiece(read(path("tokenizer.model")), config,
                                        path("tokenizer.model").string());
  if (has("vocab.json") && has("merges.txt"))
    return tokenizer_from_vocab_merges(read(path("vocab.json")), read(path("merges.txt")), config,
                                       model_folder.string());
  throw input_error(
      model_folder.string(),
      "expected tokenizer.json, tokenizer.model, or vocab.json with merges.txt, found none")
      .hint("copy them from the checkpoint, or pass ids with --prompt-ids");
}

}  // namespace tandem::text
