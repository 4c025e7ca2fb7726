#include "train/export/export_model.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/json.h"

namespace tandem::train {
namespace {

/// Files that hold weights, the base model's in any program's format, or a list of them.
bool is_of_weights(const std::string& name) {
  if (name.find(".safetensors") != std::string::npos || name.ends_with(".bin.index.json") ||
      name == "quantize_config.json" || name == "quant_config.json")
    return true;
  constexpr std::string_view kTypes[] = {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"};
  return std::ranges::any_of(kTypes, [&](std::string_view type) { return name.ends_with(type); });
}

/// Copies the files of a model folder that hold no weights: configuration, tokenizer, chat
/// template.
void copy_others(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || is_of_weights(name)) continue;
    std::error_code code;
    fs::copy_file(entry.path(), to / name, fs::copy_options::overwrite_existing, code);
    if (code) throw input_error((to / name).string(), "cannot be written: {}", code.message());
  }
}

/// A model whose text part was trained is written as that part.
void take_text_part(const std::filesystem::path& to, const std::filesystem::path& base,
                    const model::ModelConfig& config) {
  if (!std::filesystem::exists(base)) return;
  const io::Json whole = io::parse_json(io::read_file(base), base.string());
  const io::Json* part = io::find_object(whole, "text_config", base.string());
  if (part == nullptr) return;
  io::Json text = *part;
  text["architectures"] = {config.architecture};
  io::AtomicFile file(to);
  file.write(text.dump(2) + "\n");
  file.commit();
}

constexpr const char* kQuantization = "quantization_config";

/// True if config.json, where there is one, says how weights are quantized.
bool is_quantized(const std::filesystem::path& path) {
  return std::filesystem::exists(path) &&
         io::parse_json(io::read_file(path), path.string()).contains(kQuantization);
}

/// Corrects config.json: removes the base's quantization, and unties the head. Programs that read
/// only this file would otherwise ignore a head that it calls tied.
void correct(const std::filesystem::path& path, bool tied) {
  if (!std::filesystem::exists(path)) return;
  io::Json config = io::parse_json(io::read_file(path), path.string());
  const bool unties =
      !tied && io::find_bool(config, "tie_word_embeddings", path.string()).value_or(false);
  if (config.erase(kQuantization) == 0 && !unties) return;
  if (unties) config["tie_word_embeddings"] = false;
  io::AtomicFile file(path);
  file.write(config.dump(2) + "\n");
  file.commit();
}

}  // namespace

void export_files(const std::filesystem::path& folder, const std::filesystem::path& base,
                  const model::ModelConfig& config) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw input_error(folder.string(), "cannot create the folder: {}", code.message());
  copy_others(base, folder);
  take_text_part(folder / "config.json", base / "config.json", config);
  // A file that is read is not written again by the same run.
  if (!config.head.tied || is_quantized(base / "config.json"))
    correct(folder / "config.json", config.head.tied);
}

}  // namespace tandem::train
