#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "cli/context.h"
#include "eval/case_log.h"
#include "eval/settings.h"

namespace tandem::tools {

/// What pig-eval prints: all that a log holds.
struct EvalResults {
  const eval::Settings& settings;
  const std::vector<eval::NamedPolicy>& policies;  // full attention first
  const eval::CaseLog& log;
  const nlohmann::json& recipe;  // group `recipe` of records

  /// Tables or records, by --format. Warns where full attention answers nothing.
  void print(cli::Context& cx) const;
};

/// Serves --from: prints the records of pig-eval in a file, or what a log of cases holds.
/// errors   those of print_records_of and eval::read_log; kind recipe: settings of another version
int print_eval_of(cli::Context& cx, const std::filesystem::path& path);

}  // namespace tandem::tools
