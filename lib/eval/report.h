#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/case_log.h"
#include "io/json.h"
#include "io/table.h"

namespace tandem::eval {

/// Result of one policy on the cases of one length and task, or all tasks.
struct ScoreRow {
  int64_t length = 0;
  std::string task;  // "all" for all tasks together
  Protocol protocol = Protocol::dense;
  Score score = Score::forced;
  int policy = 0;
  int n_cases = 0;
  double mean = 0;
  Range interval = {};                      // Wilson's, 95 %
  std::optional<Estimate> difference = {};  // to full attention on the same cases; not for policy 0
};

/// Rows in the order of lengths, protocols, scores, tasks, policies; those without a case are left
/// out. Where there are several tasks, all together come last.
std::vector<ScoreRow> summarize(const Settings& settings, std::span<const CaseRecord> records);

/// `keys_read[length][policy]`, in the order of settings.lengths: share of keys that a token reads.
io::Table score_table(std::span<const ScoreRow> rows, const Settings& settings,
                      const std::vector<std::vector<double>>& keys_read);
io::Table text_table(std::span<const TextQuality> text, const std::vector<std::string>& names);

/// Group `quality` of a result record.
io::Json score_json(const ScoreRow& row, const std::vector<std::string>& names);

}  // namespace tandem::eval
