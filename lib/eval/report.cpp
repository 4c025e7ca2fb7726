#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/json.h"

namespace tandem::eval {
namespace {

template <class E>
std::string name_of(E value) {
  return std::string(enum_names(value)[static_cast<size_t>(value)]);
}

const Outcome* find_outcome(const CaseRecord& record, const ScoreRow& of, int policy) {
  for (const Outcome& o : record.outcomes)
    if (o.policy == policy && o.protocol == of.protocol && o.score == of.score) return &o;
  return nullptr;
}

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

/// Fills the row of one task; its counts are 0 without cases.
PairedCounts count_cases(std::span<const CaseRecord> records, Task task, ScoreRow& row) {
  PairedCounts counts;
  MeanReads reads;
  for (const CaseRecord& record : records) {
    if (record.task != task || record.length != row.length) continue;
    const Outcome* own = find_outcome(record, row, row.policy);
    const Outcome* full = find_outcome(record, row, 0);
    if (own == nullptr || full == nullptr) continue;
    counts.add(own->correct, full->correct);
    reads.add(own->reads);
    add_rounds(row, own->rounds);
  }
  row.task = name_of(task);
  row.n_cases = counts.n();
  row.reads = reads.mean();
  if (row.n_cases == 0) return counts;
  row.mean = counts.method();
  row.interval = wilson_interval(counts.both + counts.method_only, counts.n());
  if (row.policy == 0) return counts;
  row.difference = paired_difference(counts);
  row.difference_interval = paired_interval(counts);
  if (counts.reference() > 0) row.ratio = counts.method() / counts.reference();
  row.falls_behind = paired_interval(counts, kKeepsUp).high < 0;
  return counts;
}

/// Appends the rows of one policy: its tasks, and their mean.
void add_rows(const Settings& settings, std::span<const CaseRecord> records, const ScoreRow& empty,
              std::vector<ScoreRow>& rows) {
  std::vector<PairedCounts> counts;
  std::vector<ScoreRow> own;
  MeanReads reads;
  int n_cases = 0;
  for (const Task task : settings.questions()) {
    ScoreRow row = empty;
    const PairedCounts of_task = count_cases(records, task, row);
    if (row.n_cases == 0) continue;
    counts.push_back(of_task);
    reads.add(row.reads);
    n_cases += row.n_cases;
    own.push_back(std::move(row));
  }
  if (counts.empty()) return;
  if (settings.questions().size() > 1) {
    const TaskMeans means = mean_over_tasks(counts);
    ScoreRow row = empty;
    row.task = "mean";
    row.n_cases = n_cases;
    row.mean = means.method;
    row.interval = means.interval;
    row.reads = reads.mean();
    for (const ScoreRow& task : own) add_rounds(row, task.rounds);
    if (row.policy != 0) {
      row.difference = means.difference;
      row.difference_interval = means.difference_interval;
      row.ratio = means.ratio;
    }
    own.push_back(std::move(row));
  }
  if (empty.policy != 0) {
    const auto intervals = bootstrap_ratios(counts);
    for (size_t i = 0; i < own.size(); ++i) own[i].ratio_interval = intervals[i];
  }
  rows.insert(rows.end(), own.begin(), own.end());
}

std::string with_error(const Estimate& e, const char* form) {
  const std::string mean = fmt::format(fmt::runtime(form), e.mean);
  if (!e.stderr_) return mean;
  return mean + " ± " + fmt::format("{:.2g}", *e.stderr_);
}

bool same_table(const ScoreRow& a, const ScoreRow& b) {
  return a.length == b.length && a.protocol == b.protocol && a.score == b.score;
}

/// What the rows of a table share.
std::string heading(std::span<const ScoreRow> rows) {
  int fewest = rows[0].n_cases, most = 0;
  for (const ScoreRow& row : rows) {
    if (row.task == "mean") continue;
    fewest = std::min(fewest, row.n_cases);
    most = std::max(most, row.n_cases);
  }
  const std::string cases =
      fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most);
  return fmt::format("{} tokens, {} question, {} answers, {} cases a task", rows[0].length,
                     name_of(rows[0].protocol), name_of(rows[0].score), cases);
}

std::string range_text(const Range& r, const char* form) {
  return fmt::format(fmt::runtime(form), r.low) + " .. " + fmt::format(fmt::runtime(form), r.high);
}

/// The row of a table: what one policy read, its tasks, and the comparison of the last, the mean.
std::vector<std::string> policy_cells(std::span<const ScoreRow> rows, const std::string& name,
                                      const std::vector<std::string>& tasks, bool with_rounds) {
  const ScoreRow& total = rows.back();
  std::vector<std::string> cells = {name, "", "", ""};
  if (const auto& reads = total.reads)
    cells = {name, fmt::format("{:.3g} %", 100 * reads->selected),
             fmt::format("{:.3g} %", 100 * reads->fixed),
             fmt::format("{:.3g}", reads->bytes / (1 << 20))};
  for (const std::string& task : tasks) {
    const auto row = std::ranges::find(rows, task, &ScoreRow::task);
    if (row == rows.end())
      cells.emplace_back();
    else
      cells.push_back(fmt::format("{:.{}f}{}", row->mean, task == "mean" ? 3 : 2,
                                  row->falls_behind ? "*" : ""));
  }
  cells.push_back(range_text(total.interval, "{:.2f}"));
  cells.push_back(total.difference ? with_error(*total.difference, "{:+.3f}") : "");
  cells.push_back(total.ratio ? fmt::format("{:.1f} %", 100 * *total.ratio) : "");
  const auto& r = total.ratio_interval;
  cells.push_back(r ? range_text({100 * r->low, 100 * r->high}, "{:.1f}") : "");
  if (!with_rounds) return cells;
  const RoundCounts rounds = total.rounds.value_or(RoundCounts{});
  for (const double value : {rounds.advance(), rounds.most(), rounds.apu(), rounds.rollback()})
    cells.push_back(total.rounds ? fmt::format("{:.3g}", value) : "");
  cells.emplace_back(!total.rounds ? "" : rounds.lossy ? "yes" : "no");
  return cells;
}

io::Table score_table(std::span<const ScoreRow> rows, const std::vector<std::string>& names) {
  std::vector<io::Table::Column> columns = {
      {"policy", io::Align::left}, {"keys"}, {"fixed"}, {"MiB a step"}};
  // Full attention comes first and has every task.
  std::vector<std::string> tasks;
  for (const ScoreRow& row : rows)
    if (row.policy == rows[0].policy) tasks.push_back(row.task);
  for (const std::string& task : tasks) columns.push_back({task});
  for (const char* title : {"95 % interval", "against full", "of full's", "95 % interval"})
    columns.push_back({title});
  const bool with_rounds =
      std::ranges::any_of(rows, [](const ScoreRow& row) { return row.rounds.has_value(); });
  if (with_rounds)
    for (const char* title : {"AAL", "of k", "APU", "rollback", "lossy"})
      columns.push_back({title});
  io::Table table(std::move(columns));
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].policy == rows[begin].policy) ++end;
    const std::string& name = names[static_cast<size_t>(rows[begin].policy)];
    table.add_row(policy_cells(rows.subspan(begin, end - begin), name, tasks, with_rounds));
  }
  return table;
}

}  // namespace

std::vector<ScoreRow> summarize(const Settings& settings, std::span<const CaseRecord> records) {
  const int n_policies = static_cast<int>(settings.policies.size()) + 1;
  std::vector<ScoreRow> rows;
  for (const recipe::TokenCount length : settings.lengths)
    for (const Protocol protocol : settings.protocols)
      for (const Score score : settings.scores)
        for (int policy = 0; policy < n_policies; ++policy)
          add_rows(settings, records,
                   {.length = length.value,
                    .task = {},
                    .protocol = protocol,
                    .score = score,
                    .policy = policy},
                   rows);
  return rows;
}

std::string score_tables(std::span<const ScoreRow> rows, const std::vector<std::string>& names,
                         io::TableFormat format) {
  std::string text;
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    while (end < rows.size() && same_table(rows[end], rows[begin])) ++end;
    const auto part = rows.subspan(begin, end - begin);
    text += heading(part) + (format == io::TableFormat::markdown ? "\n\n" : "\n");
    text += score_table(part, names).render(format) + "\n";
    begin = end;
  }
  text +=
      "keys: chosen by content, a query head and sparse layer; fixed: sinks, recent and generated; "
      "MiB a step: keys, values, index, all layers.\n";
  if (std::ranges::any_of(rows, [](const ScoreRow& row) { return row.rounds.has_value(); }))
    text +=
        "AAL: tokens a round, of k that it could give; APU: parameters used a token, over the "
        "model's; rollback: tokens given up by a round that gave up any; lossy: rounds may keep "
        "tokens that the whole model would not have drawn.\n";
  if (std::ranges::any_of(rows, &ScoreRow::falls_behind))
    text += fmt::format("*: below {:.0f} % of full attention's, paired, 95 % confidence.\n",
                        100 * kKeepsUp);
  return text;
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
                   {with_error(q.nll_difference, "{:+.4f}"), with_error(q.kl, "{:.4g}"),
                    fmt::format("{:.4g}", q.kl_p99), fmt::format("{:.2f} %", 100 * q.top1_agree)});
    table.add_row(std::move(cells));
  }
  return table;
}

io::Table attention_table(std::span<const AttentionQuality> attention,
                          const std::vector<std::string>& names) {
  io::Table table({{"policy", io::Align::left},
                   {"queries"},
                   {"output error"},
                   {"lse error"},
                   {"ranking loss"},
                   {"keys"},
                   {"exact"},
                   {"fixed"},
                   {"index KiB"},
                   {"keys KiB"}});
  for (size_t i = 1; i < attention.size(); ++i) {
    const AttentionQuality& a = attention[i];
    std::vector<std::string> cells = {names[i], fmt::format("{}", a.n_queries)};
    if (a.n_queries > 0) {
      cells.push_back(with_error(a.error, "{:.4f}"));
      cells.push_back(with_error(a.lse_error, "{:.4f}"));
      cells.push_back(a.ranking_loss ? with_error(*a.ranking_loss, "{:.4f}") : "");
      for (const double keys : {a.selected, a.exact, a.fixed})
        cells.push_back(fmt::format("{:.3g} %", 100 * keys / a.visible));
      for (const double bytes : {a.index_bytes, a.key_bytes})
        cells.push_back(fmt::format("{:.3g}", bytes / 1024));
    }
    cells.resize(10);
    table.add_row(std::move(cells));
  }
  return table;
}

io::Json score_json(const ScoreRow& row, const std::vector<NamedPolicy>& policies) {
  const NamedPolicy& policy = policies[static_cast<size_t>(row.policy)];
  io::Json json = {{"length", row.length},
                   {"task", row.task},
                   {"protocol", name_of(row.protocol)},
                   {"score", name_of(row.score)},
                   {"policy", policy.name},
                   {"kind", recipe::yaml_text(policy.cache.kind)},
                   {"reference", policies[0].name},
                   {"n_cases", row.n_cases},
                   {"correct", row.mean},
                   {"ci95_low", row.interval.low},
                   {"ci95_high", row.interval.high}};
  if (policy.sparse.any()) json["sparse"] = recipe::yaml_text(policy.sparse.kind);
  if (row.reads) json["reads"] = reads_json(*row.reads);
  if (policy.spec.any()) {
    json["spec"] = {{"gamma", policy.spec.gamma},
                    {"verify", recipe::yaml_text(policy.spec.verify)},
                    {"lossy", speculate::is_lossy(policy.spec.verify)}};
    if (row.rounds)
      json["spec"].update({{"aal", row.rounds->advance()},
                           {"k", row.rounds->most()},
                           {"density", row.rounds->density},
                           {"apu", row.rounds->apu()},
                           {"rollback", row.rounds->rollback()},
                           {"rounds", row.rounds->rounds}});
  }
  if (!row.difference) return json;
  json["difference"] = row.difference->mean;
  if (row.difference->stderr_) json["difference_stderr"] = *row.difference->stderr_;
  json["difference_ci95_low"] = row.difference_interval.low;
  json["difference_ci95_high"] = row.difference_interval.high;
  if (row.task != "mean") json["falls_behind"] = row.falls_behind;
  if (row.ratio) json["ratio"] = *row.ratio;
  if (!row.ratio_interval) return json;
  json["ratio_ci95_low"] = row.ratio_interval->low;
  json["ratio_ci95_high"] = row.ratio_interval->high;
  return json;
}

}  // namespace tandem::eval
