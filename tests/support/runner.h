#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "temporary_folder.h"

/// Runs of the tools on tiny models of every family, for the table of docs/guide/models.md.
namespace tandem::support {

/// A column of the table.
struct Family {
  std::string_view key;     // in the file of cells
  std::string_view title;   // for messages
  std::string_view folder;  // in tests/data/models
};
inline constexpr std::array kFamilies = {Family{"llama", "Llama", "llama-3.1"},
                                         Family{"mistral", "Mistral", "mistral-plain"},
                                         Family{"mistral_window", "Mistral 0.1", "mistral-window"},
                                         Family{"qwen2", "Qwen2", "qwen2-layer-types"},
                                         Family{"qwen3", "Qwen3", "qwen3-odd"},
                                         Family{"gemma3", "Gemma 3", "gemma3"},
                                         Family{"granite", "Granite", "granite"},
                                         Family{"smollm3", "SmolLM3", "smollm3"},
                                         Family{"olmo2", "OLMo 2", "olmo2"},
                                         Family{"phi3", "Phi-3", "phi3"},
                                         Family{"phi4", "Phi-4-mini", "phi4"}};

/// A run on the CPU, a plan for a GPU that need not be there, or a run on a GPU.
enum class Place : uint8_t { cpu, plan, gpu };

/// A tool refuses the run, with this message.
struct Refused {
  std::string message;
};
/// A tool fails in another way, or its result is wrong.
struct Fault {
  std::string message;
};

using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

/// Runs tools with one family's model. Plans check settings only, so that they have no results.
class Runner {
 public:
  explicit Runner(const Family& family);

  void set_place(Place place) { place_ = place; }

  // Each throws Refused or Fault.

  /// Greedy text after the prompt of the golden values equals transformers' text.
  void check_golden();
  /// A run with these settings, `KEY=VALUE ...`, gives the greedy text of plain decoding.
  void check_same_text(std::string_view tool, std::string_view settings);
  /// A run with these settings gives kNewTokens tokens, or a text that ends before.
  void check_runs(std::string_view tool, std::string_view settings);
  /// Prompts of three lengths in a batch give the texts that each of them gives in a run of its
  /// own.
  void check_batch();
  /// A text continued from a saved state equals plain decoding.
  void check_saved_state();
  /// Two processes give the text of one.
  void check_two_ranks();
  /// Thresholds of FFN neurons are measured, and drafts with them keep the text.
  void check_thresholds();
  /// The loss of a training run falls in each step.
  void check_training(const std::string& method);
  /// The base with each of three adapters gives the text of the model that its run wrote, which is
  /// not the base's.
  void check_merged_adapters();
  /// Prompts of a batch that name an adapter, or none, give the texts of runs with that adapter.
  void check_named_adapters();

  std::filesystem::path model() const;
  std::filesystem::path write(std::string_view name, std::string_view bytes) const {
    return folder_.write(name, bytes);
  }

 private:
  static constexpr int kNewTokens = 16;

  /// Standard output of a tool.
  std::string run(std::string_view tool, Words words);
  /// The ids of all texts of a tool that generates, none of a plan.
  std::vector<Ids> texts(std::string_view tool, Words words);
  /// The ids of the only text, which has some.
  Ids text(std::string_view tool, Words words);
  Words prompt_words(const std::filesystem::path& file) const;
  /// Greedy text of plain decoding after the prompt.
  const Ids& plain();
  /// The file of a prompt, which it writes.
  std::filesystem::path ids_file(std::string_view name, const Ids& ids) const;
  /// The folder of a training run.
  std::filesystem::path trained(const std::string& method);
  Ids text_with(const std::string& adapters);
  /// A config.json with heads and FFN neurons that two ranks can share.
  std::filesystem::path divisible_config() const;

  const Family& family_;
  Place place_ = Place::cpu;
  test::TemporaryFolder folder_;
  Ids prompt_;
  std::map<Place, Ids> plain_;
  std::map<std::string, std::filesystem::path> trained_;
};

/// A row of the table.
struct Method {
  std::string_view name;
  void (*check)(Runner&);
};
const std::vector<Method>& methods();

}  // namespace tandem::support
