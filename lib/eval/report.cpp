#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::eval {
namespace {

template <class E>
std::string name_of(E value) {
  return std::string(enum_names(value)[static_cast<size_t>(value)]);
}

std::optional<bool> find_outcome(const CaseRecord& record, int policy, Protocol protocol,
                                 Score score) {
  for (const Outcome& o : record.outcomes)
    if (o.policy == policy && o.protocol == protocol && o.score == score) return o.correct;
  return std::nullopt;
}

/// The row of one task, or of all; its counts are 0 without cases.
ScoreRow make_row(std::span<const CaseRecord> records, std::optional<Task> task, int64_t length,
                  Protocol protocol, Score score, int policy) {
  ScoreRow row{.length = length,
               .task = task ? name_of(*task) : "all",
               .protocol = protocol,
               .score = score,
               .policy = policy};
  int n_correct = 0;
  std::vector<double> differences;
  for (const CaseRecord& record : records) {
    if ((task && record.task != *task) || record.length != length) continue;
    const auto correct = find_outcome(record, policy, protocol, score);
    const auto full = find_outcome(record, 0, protocol, score);
    if (!correct || !full) continue;
    ++row.n_cases;
    n_correct += *correct ? 1 : 0;
    differences.push_back(static_cast<double>(*correct) - static_cast<double>(*full));
  }
  if (row.n_cases == 0) return row;
  row.mean = static_cast<double>(n_correct) / row.n_cases;
  row.interval = wilson_interval(n_correct, row.n_cases);
  if (policy != 0) row.difference = mean_of(differences);
  return row;
}

std::string with_error(const Estimate& e, const char* form) {
  const std::string mean = fmt::format(fmt::runtime(form), e.mean);
  if (!e.stderr_) return mean;
  return mean + " ± " + fmt::format("{:.2g}", *e.stderr_);
}

}  // namespace

std::vector<ScoreRow> summarize(const Settings& settings, std::span<const CaseRecord> records) {
  const int n_policies = static_cast<int>(settings.policies.size()) + 1;
  std::vector<std::optional<Task>> tasks;
  for (const Task task : settings.questions()) tasks.emplace_back(task);
  if (tasks.size() > 1) tasks.emplace_back(std::nullopt);
  std::vector<ScoreRow> rows;
  for (const recipe::TokenCount length : settings.lengths)
    for (const Protocol protocol : settings.protocols)
      for (const Score score : settings.scores)
        for (const auto& task : tasks)
          for (int policy = 0; policy < n_policies; ++policy) {
            ScoreRow row = make_row(records, task, length, protocol, score, policy);
            if (row.n_cases > 0) rows.push_back(std::move(row));
          }
  return rows;
}

io::Table score_table(std::span<const ScoreRow> rows, const Settings& settings,
                      const std::vector<std::vector<double>>& keys_read) {
  using io::Align;
  io::Table table({{"length"},
                   {"protocol", Align::left},
                   {"score", Align::left},
                   {"task", Align::left},
                   {"policy", Align::left},
                   {"keys read"},
                   {"cases"},
                   {"correct"},
                   {"95 % interval"},
                   {"against full"}});
  const auto policies = settings.all_policies();
  for (const ScoreRow& row : rows) {
    const auto policy = static_cast<size_t>(row.policy);
    const auto length = std::ranges::find(settings.lengths, row.length, &recipe::TokenCount::value);
    const double keys = keys_read[static_cast<size_t>(length - settings.lengths.begin())][policy];
    table.add_row({fmt::format("{}", row.length), name_of(row.protocol), name_of(row.score),
                   row.task, policies[policy].name, fmt::format("{:.1f} %", 100 * keys),
                   fmt::format("{}", row.n_cases), fmt::format("{:.3f}", row.mean),
                   fmt::format("{:.3f} .. {:.3f}", row.interval.low, row.interval.high),
                   row.difference ? with_error(*row.difference, "{:+.3f}") : ""});
  }
  return table;
}

io::Table text_table(std::span<const TextQuality> text, const std::vector<std::string>& names) {
  io::Table table({{"policy", io::Align::left},
                   {"tokens"},
                   {"nats/token"},
                   {"perplexity"},
                   {"against full"},
                   {"KL mean"},
                   {"KL p99"},
                   {"same top 1"}});
  for (size_t i = 0; i < text.size(); ++i) {
    const TextQuality& q = text[i];
    std::vector<std::string> cells = {names[i], fmt::format("{}", q.n_tokens),
                                      with_error(q.nll, "{:.4f}"), with_error(q.ppl, "{:.3f}")};
    if (i == 0)
      cells.insert(cells.end(), 4, "");
    else
      cells.insert(cells.end(),
                   {with_error(q.nll_difference, "{:+.4f}"), fmt::format("{:.4g}", q.kl_mean),
                    fmt::format("{:.4g}", q.kl_p99), fmt::format("{:.2f} %", 100 * q.top1_agree)});
    table.add_row(std::move(cells));
  }
  return table;
}

io::Json score_json(const ScoreRow& row, const std::vector<std::string>& names) {
  io::Json json = {{"length", row.length},
                   {"task", row.task},
                   {"protocol", name_of(row.protocol)},
                   {"score", name_of(row.score)},
                   {"policy", names[static_cast<size_t>(row.policy)]},
                   {"reference", names[0]},
                   {"n_cases", row.n_cases},
                   {"correct", row.mean},
                   {"ci95_low", row.interval.low},
                   {"ci95_high", row.interval.high}};
  if (!row.difference) return json;
  json["difference"] = row.difference->mean;
  if (row.difference->stderr_) json["difference_stderr"] = *row.difference->stderr_;
  return json;
}

}  // namespace tandem::eval
