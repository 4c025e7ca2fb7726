#include <algorithm>

#include "eval/report.h"

namespace tandem::eval {
namespace {

/// Means over the measured cases.
class MeanReads {
 public:
  void add(const std::optional<Reads>& reads) {
    if (!reads) return;
    ++n_;
    sum_.selected += reads->selected;
    sum_.fixed += reads->fixed;
    sum_.bytes += reads->bytes;
  }
  std::optional<Reads> mean() const {
    if (n_ == 0) return std::nullopt;
    return Reads{
        .selected = sum_.selected / n_, .fixed = sum_.fixed / n_, .bytes = sum_.bytes / n_};
  }

 private:
  int n_ = 0;
  Reads sum_;
};

void add_rounds(ScoreRow& row, const std::optional<RoundCounts>& rounds) {
  if (!rounds) return;
  if (!row.rounds) row.rounds.emplace();
  row.rounds->add(*rounds);
}

/// The row of one task, and the counts that it comes from.
class TaskRow {
 public:
  explicit TaskRow(const ScoreRow& empty) : row_(empty) {}

  /// A case of this policy, and full attention's outcome of it.
  void add(const auto& own, bool full_correct) {
    counts_.add(own.correct, full_correct);
    reads_.add(own.reads);
    add_rounds(row_, own.rounds);
  }
  ScoreRow& row() { return row_; }
  const PairedCounts& counts() const { return counts_; }
  /// Of at least one case.
  ScoreRow finish() {
    row_.n_cases = counts_.n();
    row_.reads = reads_.mean();
    row_.mean = counts_.method();
    row_.interval = wilson_interval(counts_.both + counts_.method_only, counts_.n());
    if (row_.policy == 0) return row_;
    row_.difference = paired_difference(counts_);
    row_.difference_interval = paired_interval(counts_);
    if (counts_.reference() > 0) row_.ratio = counts_.method() / counts_.reference();
    row_.falls_behind = paired_interval(counts_, kKeepsUp).high < 0;
    return row_;
  }

 private:
  ScoreRow row_;
  PairedCounts counts_;
  MeanReads reads_;
};

ScoreRow mean_row(ScoreRow row, std::span<const ScoreRow> tasks,
                  std::span<const PairedCounts> counts) {
  const TaskMeans means = mean_over_tasks(counts);
  row.is_mean = true;
  row.mean = means.method;
  row.interval = means.interval;
  MeanReads reads;
  for (const ScoreRow& task : tasks) {
    row.n_cases += task.n_cases;
    reads.add(task.reads);
    add_rounds(row, task.rounds);
    if (!task.answers) continue;
    if (!row.answers) row.answers.emplace();
    row.answers->add(*task.answers);
  }
  row.reads = reads.mean();
  if (row.policy == 0) return row;
  row.difference = means.difference;
  row.difference_interval = means.difference_interval;
  row.ratio = means.ratio;
  return row;
}

/// Appends the rows of one policy: its tasks that have cases, and their mean if that has a name.
void add_rows(std::vector<TaskRow> tasks, ScoreRow mean, std::vector<ScoreRow>& rows) {
  std::erase_if(tasks, [](const TaskRow& task) { return task.counts().n() == 0; });
  if (tasks.empty()) return;
  std::vector<PairedCounts> counts;
  std::vector<ScoreRow> own;
  for (TaskRow& task : tasks) {
    counts.push_back(task.counts());
    own.push_back(task.finish());
  }
  if (!mean.task.empty() && own.size() > 1) own.push_back(mean_row(std::move(mean), own, counts));
  if (own.front().policy != 0) {
    const auto intervals = bootstrap_ratios(counts);
    for (size_t i = 0; i < own.size(); ++i) own[i].ratio_interval = intervals[i];
  }
  rows.insert(rows.end(), own.begin(), own.end());
}

const Outcome* find_outcome(const std::vector<Outcome>& outcomes, const ScoreRow& of, int policy) {
  for (const Outcome& o : outcomes)
    if (o.policy == policy && o.protocol == of.protocol && o.score == of.score) return &o;
  return nullptr;
}

/// Counts the records that `is_counted` takes.
TaskRow count_outcomes(const auto& records, const std::string& task, const ScoreRow& empty,
                       const auto& is_counted) {
  TaskRow counted(empty);
  counted.row().task = task;
  for (const auto& record : records) {
    if (!is_counted(record)) continue;
    const Outcome* own = find_outcome(record.outcomes, empty, empty.policy);
    const Outcome* full = find_outcome(record.outcomes, empty, 0);
    if (own != nullptr && full != nullptr) counted.add(*own, full->correct);
  }
  return counted;
}

TaskRow count_answers(std::span<const AnswerRecord> records, AnswerSet set, const ScoreRow& empty) {
  TaskRow counted(empty);
  counted.row().task = name_of(set);
  AnswerCounts& answers = counted.row().answers.emplace();
  for (const AnswerRecord& record : records) {
    if (record.set != set) continue;
    const auto of = [&](int policy) {
      return std::ranges::find(record.answers, policy, &SetAnswer::policy);
    };
    const auto own = of(empty.policy), full = of(0);
    if (own == record.answers.end() || full == record.answers.end()) continue;
    counted.add(*own, full->correct);
    answers.add({.none = own->extracted ? 0 : 1, .at_limit = own->ended ? 0 : 1});
  }
  return counted;
}

}  // namespace

std::vector<ScoreRow> summarize(const Settings& settings, std::span<const CaseRecord> records) {
  const int n_policies = static_cast<int>(settings.policies.size()) + 1;
  const std::vector<Task> tasks = settings.questions();
  std::vector<ScoreRow> rows;
  const auto add = [&](ScoreRow empty) {
    std::vector<TaskRow> counted;
    for (const Task task : tasks)
      counted.push_back(
          count_outcomes(records, recipe::yaml_text(task), empty, [&](const CaseRecord& record) {
            return record.task == task && record.length == empty.length;
          }));
    if (tasks.size() > 1) empty.task = "mean";
    add_rows(std::move(counted), std::move(empty), rows);
  };
  for (const recipe::TokenCount length : settings.lengths)
    for (const Protocol protocol : settings.protocols)
      for (const Score score : settings.prose_scores())
        for (int policy = 0; policy < n_policies; ++policy)
          add({.length = length.value,
               .task = {},
               .protocol = protocol,
               .score = score,
               .policy = policy});
  return rows;
}

std::vector<ScoreRow> summarize_own(const Settings& settings, std::span<const OwnRecord> records) {
  const int n_policies = static_cast<int>(settings.policies.size()) + 1;
  std::vector<ScoreRow> rows;
  for (const Protocol protocol : settings.protocols)
    for (const Score score : {Score::generated, Score::acc, Score::acc_norm})
      for (int policy = 0; policy < n_policies; ++policy) {
        ScoreRow row{.task = {}, .protocol = protocol, .score = score, .policy = policy};
        row.own = true;
        std::vector<TaskRow> counted;
        for (const TaskName& task : settings.own_tasks())
          counted.push_back(count_outcomes(records, task.shown(), row, [&](const OwnRecord& r) {
            return r.task == task.shown();
          }));
        row.task = "mean";
        add_rows(std::move(counted), std::move(row), rows);
      }
  return rows;
}

std::vector<ScoreRow> summarize_answers(const Settings& settings,
                                        std::span<const AnswerRecord> records) {
  const int n_policies = static_cast<int>(settings.policies.size()) + 1;
  std::vector<ScoreRow> rows;
  const auto add = [&](SetGroup group, ScoreRow empty) {
    std::vector<TaskRow> counted;
    for (const AnswerSet set : settings.answer_sets())
      if (facts_of(set).group == group) counted.push_back(count_answers(records, set, empty));
    const bool whole =
        counted.size() == sets_of(group).size() &&
        std::ranges::all_of(counted, [](const TaskRow& task) { return task.counts().n() > 0; });
    if (whole) empty.task = name_of(group);
    add_rows(std::move(counted), std::move(empty), rows);
  };
  for (const SetGroup group : {SetGroup::commonsense, SetGroup::arithmetic})
    for (int policy = 0; policy < n_policies; ++policy)
      add(group, {.task = {}, .policy = policy, .group = group});
  return rows;
}

}  // namespace tandem::eval
