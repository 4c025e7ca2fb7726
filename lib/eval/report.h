#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/answer_log.h"
#include "eval/case_log.h"
#include "eval/paired.h"
#include "io/json_fwd.h"
#include "io/table.h"

namespace tandem::eval {

/// A method keeps up on a task unless its score is significantly below this share of full
/// attention's.
inline constexpr double kKeepsUp = 0.95;

/// Of answers that were generated in full.
struct AnswerCounts {
  int none = 0;      // nothing in them looked like an answer
  int at_limit = 0;  // that the model did not end

  void add(const AnswerCounts& other) {
    none += other.none;
    at_limit += other.at_limit;
  }
};

/// Result of one policy on the cases of one length and task, or on a set of questions, or the mean
/// over tasks. Comparisons are to full attention on the same cases; policy 0 has none.
struct ScoreRow {
  int64_t length = 0;
  std::string task;  // "mean", or a group's name, for the mean over tasks, each counting the same
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
  bool is_mean = false;
  /// Of sets of questions: length, protocol and score then mean nothing.
  std::optional<SetGroup> group = {};
  bool own = false;  // of files of questions: length then means nothing
  std::optional<AnswerCounts> answers = {};
};

/// Rows in the order of lengths, protocols, scores, policies, tasks; those without a case are left
/// out. Where there are several tasks, their mean comes last.
std::vector<ScoreRow> summarize(const Settings& settings, std::span<const CaseRecord> records);

/// Rows of files of questions, in the order of protocols, scores, policies, tasks.
std::vector<ScoreRow> summarize_own(const Settings& settings, std::span<const OwnRecord> records);

/// The same of sets, in the order of groups, policies, tasks. The mean of a group comes last where
/// all of its sets have a case.
std::vector<ScoreRow> summarize_answers(const Settings& settings,
                                        std::span<const AnswerRecord> records);

/// A table for each length, protocol and score, or group: a row a policy, its tasks side by side.
std::string score_tables(std::span<const ScoreRow> rows, const std::vector<std::string>& names,
                         io::TableFormat format);
io::Table text_table(std::span<const TextQuality> text, const std::vector<std::string>& names);
io::Table attention_table(std::span<const AttentionQuality> attention,
                          const std::vector<std::string>& names);

/// Group `quality` of a result record.
io::Json score_json(const ScoreRow& row, const std::vector<NamedPolicy>& policies);

}  // namespace tandem::eval
