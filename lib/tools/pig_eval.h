#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/context.h"
#include "eval/case_log.h"
#include "eval/gate_quantiles.h"
#include "eval/own_tasks.h"
#include "eval/policy_engines.h"
#include "model/spec/config.h"

namespace tandem::tools {

/// Section `output` of pig-eval.
struct CaseLogFile {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path,
      "log of judged cases, one JSON line each, which --resume continues, empty = none");
  }
};

struct EvalRecipe {
  recipe::Model model;
  recipe::RankedRun run;
  recipe::Data data;
  eval::Settings eval;
  CaseLogFile output;

  template <class V>
  void fields(V& v) {
    v("model", model, "model");
    v("run", run, "device, threads, seed, sizes");
    v("data", data, "text of perplexity and attention");
    v("eval", eval, "tasks, protocols, sets and policies");
    v("output", output, "log of cases");
  }
  void check(recipe::Problems& p) const {
    recipe::refuse_states(model, {}, p);
    if (output.path == "-")
      p.field("output.path", "output.path: expected a file for the log of cases, found -");
  }
};

/// A run of pig-eval: opens the log, judges what it lacks, prints what it holds.
class PigEval {
 public:
  using Recipe = EvalRecipe;

  /// errors   kind input: no such model, a set or file that cannot be read or asked in its context; kind
  ///          recipe: lengths beyond its context
  PigEval(cli::Context& cx, const cli::Point<Recipe>& point);

  /// A plan of the questions, then one of each file, of the sets, of the perplexity, of the
  /// attention.
  /// errors   kind memory, after a plan is out: it does not fit
  int print_plan();
  /// An interruption drops the cases in flight and prints those judged before.
  int run();
  /// Serves --from, for a file of records or a log of cases.
  static int print_from(cli::Context& cx, const std::filesystem::path& file);

 private:
  /// A set with its questions, in the order in which they are asked.
  struct AskedSet {
    eval::AnswerSet set;
    std::vector<eval::Question> questions;
  };

  /// Starts a new log, or takes an old one over after its last whole line (--resume).
  void open_log();
  /// Runs the missing cases and questions, then the missing perplexity and attention. With
  /// --dry-run prints plans instead.
  void judge();
  void check_context() const;
  int text_context() const;
  /// Engines within the memory that may be used; with --dry-run prints the plan and returns none.
  /// batch   sequences of a step
  std::optional<eval::PolicyEngines> load(const eval::PolicyEngines::SpecOf& spec_of, int batch,
                                          const char* buffer = nullptr, size_t buffer_bytes = 0);
  eval::PolicyEngines::SpecOf question_spec(int group) const;
  /// `spec_of` gives the engines' sizes for a group.
  int group_size(const decode::ModelFiles& files, int n_cases,
                 const std::function<eval::PolicyEngines::SpecOf(int group)>& spec_of) const;
  std::vector<eval::Correction> corrections() const;
  const text::Tokenizer& tokenizer_of(const decode::ModelFiles& files) const;
  void run_questions();
  // Of sets, in pig_eval_sets.cpp.
  void read_sets();
  /// errors   kind input: prompts that leave no room for an answer
  void check_lengths(const AskedSet& asked) const;
  /// errors   kind input: the log has answers to other questions
  void check_answers() const;
  eval::PolicyEngines::SpecOf set_spec(int longest, int group) const;
  void run_sets();
  void ask(const eval::Panel& panel, eval::AnswerSet set,
           std::span<const eval::Question> questions);
  // Files of questions: pig_eval_own.cpp.
  void read_own();
  /// errors   kind input: the log has answers to other questions
  void check_own() const;
  void run_own();
  void run_text();
  void run_attention();
  /// Thresholds of channels: none where the work stops before the end, or with --dry-run.
  std::optional<eval::MeasuredThresholds> measure_channels();
  /// Measures them unless the log has them, and writes their file.
  void calibrate();
  cli::FileMode calibration_mode() const;
  /// errors   kind usage, input: before the work, what would keep the file from appearing after it
  void check_thresholds_file() const;

  cli::Context& cx_;
  const cli::Point<Recipe>& point_;
  const EvalRecipe& recipe_;
  std::vector<eval::NamedPolicy> policies_;  // full attention first
  decode::EngineSizer sizer_;
  std::vector<std::string> names_;
  model::ModelConfig config_;
  std::vector<AskedSet> sets_;  // while they are asked, what the log lacks
  std::vector<eval::OwnTask> own_;
  eval::CaseLog log_;
  std::unique_ptr<cli::ResultFile> file_;  // null without output.path
};

}  // namespace tandem::tools
