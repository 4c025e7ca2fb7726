#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/context.h"
#include "decode/generate.h"
#include "decode/generate_prompts.h"
#include "decode/prompts.h"
#include "machine/hosted_plan.h"
#include "recipe/sections.h"
#include "speculate/measure/plain_meter.h"
#include "speculate/round/speculation.h"

namespace tandem::tools {

/// The part of a summary about speculation.
struct SpeculationReport {
  const speculate::RoundStats* rounds = nullptr;      // null where there was none
  const speculate::RoundStats* within = nullptr;      // of rounds within these
  const nlohmann::ordered_json* predicted = nullptr;  // what a plan expected; null without one
  const nlohmann::ordered_json* fastest = nullptr;    // what spec.fastest tried; null without
  bool reads_channels = true;  // of an engine with FFN policies, whether drafts read by them
  bool declined = false;       // since the plan predicted a loss
  std::optional<speculate::PlainMeter::Result> plain = {};  // none where the run was too short
  std::string remedy = {};                                  // where that was faster
};

/// Shows the generated tokens: as text (one sequence streams, several come out whole and in order),
/// as a JSON line a prompt in their order (results), or as JSON events. Ends with a summary on
/// stderr, and as an event.
class GenerateOutput {
 public:
  /// prompts outlive this; their labels are shown above the texts where there are several
  /// engine  of the model whose text it is
  /// plan    of the whole run
  /// hosted  how keys in host memory are attended; null without such
  GenerateOutput(cli::Context& cx, const std::filesystem::path& path,
                 const decode::PromptSet& prompts, const decode::Engine& engine,
                 const MemoryPlan& plan, const machine::HostedPlan* hosted = nullptr);

  decode::GenerateEvents events();
  void on_round(const speculate::RoundEvent& event);
  /// Closes the text, writes the summary, gives the result file its name.
  /// sampling  settled
  /// errors    the interruption that the report holds
  void finish(const decode::PromptsReport& report, double load_s, int64_t seed,
              const recipe::Sampling& sampling, const SpeculationReport& speculation = {});

 private:
  void on_token(const decode::TokenEvent& event);
  void on_finish(int seq, decode::Finish finish, const std::string& rest);
  void on_prefill(int64_t done, int64_t total);
  void show_finished();
  /// Says which answers stopped at the context's end; empty if none did.
  std::string context_line(int max_context) const;
  void event(const nlohmann::ordered_json& value);
  /// The line of a finished prompt.
  nlohmann::ordered_json result_of(int seq) const;
  /// What memory gives, to set a rate against: measured with -v, which takes a second, else what an
  /// earlier run has kept; 0: not known.
  /// reached    rate of this run, which raises the limit if its reads are `uncached`
  double memory_gbps(double reached, bool uncached) const;
  nlohmann::ordered_json summary(const decode::GenerateReport& report, double load_s, int64_t seed,
                                 const recipe::Sampling& sampling,
                                 const SpeculationReport& speculation) const;
  /// The summary as text, on stderr.
  void note_summary(const nlohmann::ordered_json& j, const decode::PromptsReport& report,
                    double load_s, int64_t seed, const SpeculationReport& speculation) const;

  cli::Context& cx_;
  cli::ResultFile result_;
  /// A text that is not shown yet, or how it came about.
  struct Text {
    std::string text = {};
    std::vector<int32_t> ids = {};  // where the model has no tokenizer
    int64_t tokens = 0;
    double first_ms = 0, last_ms = 0;  // of clock_
  };

  const decode::PromptSet& prompts_;
  const decode::Engine& engine_;
  const MemoryPlan& plan_;
  const machine::HostedPlan* hosted_;
  bool jsonl_, results_;
  bool several_;
  Stopwatch clock_;
  std::optional<double> first_token_s_;  // of clock_
  std::unique_ptr<cli::Progress> progress_;
  std::map<int, Text> texts_;  // of sequences not shown yet
  std::map<int, decode::Finish> finished_;
  int next_shown_ = 0;
};

}  // namespace tandem::tools
