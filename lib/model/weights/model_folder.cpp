#include "model/weights/model_folder.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "io/quote.h"

namespace tandem::model {
namespace {

Error refuse_gguf(const std::filesystem::path& path) {
  return input_error(path.string(), "is a GGUF file, expected a folder with safetensors files")
      .hint("give the file itself as the model, or take the original Hugging Face folder");
}

Error refuse_pickle(const std::filesystem::path& path) {
  return input_error(path.string(), "PyTorch pickle files are not supported, expected safetensors")
      .hint(
          "convert it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder, "
          "safe_serialization=True)");
}

bool is_pickle(const std::filesystem::path& path) {
  constexpr std::string_view kEndings[] = {".bin", ".pth", ".pt", ".ckpt"};
  return std::ranges::find(kEndings, path.extension().string()) != std::end(kEndings);
}

}  // namespace

void require_model_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return;
  if (!std::filesystem::exists(folder, ignored))
    throw input_error(folder.string(), "no such model folder")
        .hint(
            "give a Hugging Face folder (config.json, tokenizer, safetensors files) or "
            "synthetic:NAME");
  if (folder.extension() == ".gguf") throw refuse_gguf(folder);
  if (is_pickle(folder)) throw refuse_pickle(folder);
  throw input_error(folder.string(), "is a file, expected a model folder")
      .hint("give the folder that holds config.json, tokenizer and safetensors files");
}

void refuse_foreign_weights(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path gguf, pickle;  // the first by name, so that the message does not vary
  const auto keep_first = [](std::filesystem::path& kept, const std::filesystem::path& found) {
    if (kept.empty() || found < kept) kept = found;
  };
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".gguf") keep_first(gguf, it->path());
    // training_args.bin and the like lie next to good weights; only a folder without them gets here
    if (is_pickle(it->path())) keep_first(pickle, it->path());
  }
  if (!gguf.empty()) throw refuse_gguf(gguf);
  if (!pickle.empty()) throw refuse_pickle(pickle);
}

std::string folder_name(const std::filesystem::path& folder) {
  const auto absolute = std::filesystem::absolute(folder).lexically_normal();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
}

}  // namespace tandem::model
