#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/cache.h"
#include "tandem/draft.h"
#include "tandem/result.h"
#include "tandem/round.h"
#include "tandem/session.h"

namespace tandem {

struct LoadedModel;  // internal

/// Settings of a loaded model.
struct ModelOptions {
  Cache cache = {};
  Draft draft = {};
  std::string device = "auto";  // cpu, cuda or cuda:N; auto = a usable GPU, else the CPU
  int64_t context = 0;          // tokens of a session; 0 = the model's limit, halved until it fits
  int sessions = 1;             // alive at once, forks and sequences of a batch included
  /// Further settings of a recipe, as flag -s of the tools takes them: "model.weights=int8".
  /// Sections sampling and output, and keys that other members set, are refused.
  std::vector<std::string> set = {};
  OnRound on_round = {};                                // called after each speculation step
  std::function<void(const std::string&)> on_note = {};  // receives notes and warnings
};

/// A loaded model. Any thread may use it; calls that run it take turns.
class Model {
 public:
  /// Opens a Hugging Face folder, a GGUF file, a name of a known model or synthetic:NAME.
  /// errors   kind input: files missing or malformed; kind recipe: settings; kinds memory, device
  static Model open(const std::string& path, const ModelOptions& options = {});
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// errors   kind usage: as many sessions are alive as ModelOptions::sessions says
  Session session();
  /// Returns a session with a saved text.
  /// errors   as session; kind input: the file belongs to another model or is damaged
  Session restore(const std::filesystem::path& file);
  /// Generates the answer to each prompt, several at a time.
  /// errors   as session and those of Session
  std::vector<Result> generate(std::span<const std::string> prompts, const Sampling& how = {},
                               const OnToken& on_token = {});

  /// Returns token ids, with the model's beginning-of-text token if `begins`.
  /// errors   kind input: the model has no tokenizer
  std::vector<int32_t> encode(std::string_view text, bool begins = true) const;
  /// errors   kind input: the model has no tokenizer; an id that does not exist
  std::string decode(std::span<const int32_t> ids) const;
  /// The sampling that the model's generation_config.json suggests; all unset without one.
  Sampling suggested_sampling() const;
  const std::string& name() const;
  int vocab() const;        // token ids are 0 to vocab - 1
  int64_t context() const;  // tokens of a session

 private:
  explicit Model(std::shared_ptr<LoadedModel> loaded);
  /// errors   kind usage: moved from
  const std::shared_ptr<LoadedModel>& loaded() const;
  std::shared_ptr<LoadedModel> loaded_;
};

}  // namespace tandem
