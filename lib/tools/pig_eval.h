#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/context.h"
#include "cli/device.h"
#include "eval/report.h"
#include "model/config.h"

namespace tandem::tools {

/// Section `output` of pig-eval.
struct CaseLogFile {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path,
      "log of judged cases, one JSON line each; what --resume continues; empty = none");
  }
};

struct EvalRecipe {
  recipe::Model model;
  recipe::Run run;
  recipe::Data data;
  eval::Settings eval;
  CaseLogFile output;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "device, threads, seed, sizes");
    v("data", data, "text of the perplexity task");
    v("eval", eval, "tasks, protocols and policies");
    v("output", output, "where cases are logged");
  }
  void check(recipe::Problems& p) const {
    if (!model.state.empty()) p.field("model.state", "pig-eval continues no saved state");
    if (output.path == "-") p.field("output.path", "output.path: a log of cases is a file, not -");
  }
};

/// A run of pig-eval: opens the log, judges what it lacks, prints what it holds.
class PigEval {
 public:
  /// errors   kind input: no such model; kind recipe: lengths beyond its context
  PigEval(cli::Context& cx, const cli::Point<EvalRecipe>& point);

  /// Starts a new log, or takes an old one over after its last whole line (--resume).
  void open_log();
  /// Runs the missing cases, then the missing perplexity; an interruption ends it, and
  /// drops the cases in flight. With --dry-run prints memory plans instead.
  void run();
  /// Tables or records of all that is known.
  void print();

 private:
  void check_context() const;
  int text_context() const;
  DType compute() const;
  decode::ModelFiles open_model() const;
  std::unique_ptr<decode::Engine> load(decode::ModelFiles files, decode::EngineSpec spec,
                                       size_t buffer_bytes);
  decode::EngineSpec question_spec(int group) const;
  int group_size(const decode::ModelFiles& files) const;
  void run_questions();
  void run_text();
  void print_records(const std::vector<eval::ScoreRow>& rows);
  void print_tables(const std::vector<eval::ScoreRow>& rows);

  cli::Context& cx_;
  const cli::Point<EvalRecipe>& point_;
  const EvalRecipe& recipe_;
  std::vector<eval::NamedPolicy> policies_;  // full attention first
  cli::Placement place_;
  std::vector<std::string> names_;
  model::ModelConfig config_;
  eval::CaseLog log_;
  std::unique_ptr<cli::ResultFile> file_;  // null without output.path
};

}  // namespace tandem::tools
