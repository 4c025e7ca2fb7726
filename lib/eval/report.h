#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/case_log.h"
#include "eval/paired.h"
#include "io/json_fwd.h"
#include "io/table.h"

namespace tandem::eval {

/// A method keeps up on a task unless its score is significantly below this share of full
/// attention's.
inline constexpr double kKeepsUp = 0.95;

/// Result of one policy on the cases of one length and task, or the mean over tasks. Comparisons
/// are to full attention on the same cases; policy 0 has none.
struct ScoreRow {
  int64_t length = 0;
  std::string task;  // "mean" for the mean over tasks, each counting the same
  Protocol protocol = Protocol::dense;
  Score score = Score::forced;
  int policy = 0;
  int n_cases = 0;
  double mean = 0;
  Range interval = {};  // 95 %, Wilson's for a task
  std::optional<Estimate> difference = {};
  Range difference_interval = {};  // 95 %
  std::optional<double> ratio = {};
  std::optional<Range> ratio_interval = {};  // 95 %, bootstrap
  bool falls_behind = false;                 // a task, significantly below kKeepsUp of full
  std::optional<Reads> reads = {};           // mean over cases
  std::optional<RoundCounts> rounds = {};    // of all cases
};

/// Rows in the order of lengths, protocols, scores, policies, tasks; those without a case are left
/// out. Where there are several tasks, their mean comes last.
std::vector<ScoreRow> summarize(const Settings& settings, std::span<const CaseRecord> records);

/// A table for each length, protocol and score: a row a policy, its tasks side by side.
std::string score_tables(std::span<const ScoreRow> rows, const std::vector<std::string>& names,
                         io::TableFormat format);
io::Table text_table(std::span<const TextQuality> text, const std::vector<std::string>& names);
io::Table attention_table(std::span<const AttentionQuality> attention,
                          const std::vector<std::string>& names);

/// Group `quality` of a result record.
io::Json score_json(const ScoreRow& row, const std::vector<NamedPolicy>& policies);

}  // namespace tandem::eval
