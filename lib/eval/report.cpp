#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "eval/figures_json.h"
#include "io/json.h"

namespace tandem::eval {
namespace {

std::string with_error(const Estimate& e, const char* form) {
  const std::string mean = fmt::format(fmt::runtime(form), e.mean);
  if (!e.stderr_) return mean;
  return mean + " ± " + fmt::format("{:.2g}", *e.stderr_);
}

bool same_table(const ScoreRow& a, const ScoreRow& b) {
  return a.group == b.group && a.own == b.own && a.length == b.length && a.protocol == b.protocol &&
         a.score == b.score;
}

/// What the rows of a table share.
std::string heading(std::span<const ScoreRow> rows) {
  int fewest = rows[0].n_cases, most = 0;
  for (const ScoreRow& row : rows) {
    if (row.is_mean) continue;
    fewest = std::min(fewest, row.n_cases);
    most = std::max(most, row.n_cases);
  }
  const std::string cases =
      fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most);
  if (const auto group = rows[0].group)
    return fmt::format("{}, greedy answers up to {} tokens, {} cases per task", name_of(*group),
                       facts_of(sets_of(*group).front()).max_tokens, cases);
  const std::string protocol = recipe::yaml_text(rows[0].protocol);
  if (rows[0].score == Score::acc || rows[0].score == Score::acc_norm)
    return fmt::format(
        "own questions, {} question, {}, choices by log-probability{}, {} cases per task", protocol,
        recipe::yaml_text(rows[0].score), rows[0].score == Score::acc ? "" : " per byte", cases);
  return fmt::format("{}, {} question, {} answers, {} cases per task",
                     rows[0].own ? "own questions" : fmt::format("{} tokens", rows[0].length),
                     protocol, recipe::yaml_text(rows[0].score), cases);
}

std::string range_text(const Range& r, const char* form) {
  return fmt::format(fmt::runtime(form), r.low) + " .. " + fmt::format(fmt::runtime(form), r.high);
}

/// How rounds went; empty where there were none.
std::vector<std::string> round_cells(const std::optional<RoundCounts>& rounds) {
  if (!rounds) return std::vector<std::string>(5);
  std::vector<std::string> cells;
  for (const double value : {rounds->advance(), rounds->most(), rounds->apu(), rounds->rollback()})
    cells.push_back(fmt::format("{:.3g}", value));
  cells.emplace_back(rounds->lossy ? "yes" : "no");
  return cells;
}

/// Shares of the texts without an answer, and of those at the limit.
std::vector<std::string> answer_cells(std::span<const ScoreRow> rows) {
  AnswerCounts counts;
  int n_cases = 0;
  for (const ScoreRow& row : rows)
    if (!row.is_mean && row.answers) {
      counts.add(*row.answers);
      n_cases += row.n_cases;
    }
  std::vector<std::string> cells;
  for (const int n : {counts.none, counts.at_limit})
    cells.push_back(fmt::format("{:.1f} %", 100.0 * n / n_cases));
  return cells;
}

/// Which columns a table has beyond those of all.
struct Extras {
  bool answers = false, rounds = false;
};

/// The row of a table: what one policy read, its tasks, and the comparison of their mean, or of the
/// only one. Some sets of a group have neither.
std::vector<std::string> policy_cells(std::span<const ScoreRow> rows, const std::string& name,
                                      const std::vector<std::string>& tasks, Extras extras) {
  static const ScoreRow kNone;
  const bool compares = rows.size() == 1 || rows.back().is_mean;
  const ScoreRow& total = compares ? rows.back() : kNone;
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
      cells.push_back(fmt::format("{:.{}f}{}", row->mean, row->is_mean || row->group ? 3 : 2,
                                  row->falls_behind ? "*" : ""));
  }
  cells.push_back(compares ? range_text(total.interval, "{:.2f}") : "");
  cells.push_back(total.difference ? with_error(*total.difference, "{:+.3f}") : "");
  cells.push_back(total.ratio ? fmt::format("{:.1f} %", 100 * *total.ratio) : "");
  const auto& r = total.ratio_interval;
  cells.push_back(r ? range_text({100 * r->low, 100 * r->high}, "{:.1f}") : "");
  const auto append = [&](const std::vector<std::string>& more) {
    cells.insert(cells.end(), more.begin(), more.end());
  };
  if (extras.answers) append(answer_cells(rows));
  if (extras.rounds) append(round_cells(total.rounds));
  return cells;
}

io::Table score_table(std::span<const ScoreRow> rows, const std::vector<std::string>& names) {
  std::vector<io::Table::Column> columns = {
      {"policy", io::Align::left}, {"selected"}, {"fixed"}, {"MiB/step"}};
  // Full attention comes first and has every task.
  std::vector<std::string> tasks;
  for (const ScoreRow& row : rows)
    if (row.policy == rows[0].policy) tasks.push_back(row.task);
  for (const std::string& task : tasks) columns.push_back({task});
  for (const char* title : {"95 % interval", "vs full", "% of full", "95 % interval"})
    columns.push_back({title});
  const Extras extras{
      .answers = std::ranges::any_of(rows, [](const auto& row) { return row.answers.has_value(); }),
      .rounds = std::ranges::any_of(rows, [](const auto& row) { return row.rounds.has_value(); })};
  if (extras.answers) columns.insert(columns.end(), {{"no answer"}, {"at limit"}});
  if (extras.rounds)
    for (const char* title : {"AAL", "of k", "APU", "rollback", "lossy"})
      columns.push_back({title});
  io::Table table(std::move(columns));
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].policy == rows[begin].policy) ++end;
    const std::string& name = names[static_cast<size_t>(rows[begin].policy)];
    table.add_row(policy_cells(rows.subspan(begin, end - begin), name, tasks, extras));
  }
  return table;
}

}  // namespace

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
      "selected: tokens read by content, per query head and sparse layer. fixed: sinks, recent and "
      "generated tokens. MiB/step: KV and index, all layers.\n";
  if (std::ranges::any_of(rows, [](const ScoreRow& row) { return row.answers.has_value(); }))
    text +=
        "no answer: texts without a recognizable answer, counted as wrong. at limit: texts that "
        "reached the token limit.\n";
  if (std::ranges::any_of(rows, [](const ScoreRow& row) { return row.rounds.has_value(); }))
    text +=
        "AAL: tokens per speculation step, out of k. APU: parameters used per token, relative to "
        "the model's. rollback: tokens discarded per step that discards any. lossy: may keep "
        "tokens that the full model would not have sampled.\n";
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
                   {"vs full"},
                   {"KL mean"},
                   {"KL p99"},
                   {"top-1 agreement"}});
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
                   {"selected"},
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
  io::Json json = {{"task", row.task},
                   {"policy", policy.name},
                   {"kind", recipe::yaml_text(policy.cache.kind)},
                   {"reference", policies[0].name},
                   {"n_cases", row.n_cases},
                   {"correct", row.mean},
                   {"ci95_low", row.interval.low},
                   {"ci95_high", row.interval.high}};
  if (row.group)
    json["group"] = name_of(*row.group);
  else
    json.update(
        {{"protocol", recipe::yaml_text(row.protocol)}, {"score", recipe::yaml_text(row.score)}});
  if (row.own)
    json["group"] = "own";
  else if (!row.group)
    json["length"] = row.length;
  if (row.answers)
    json.update({{"n_no_answer", row.answers->none}, {"n_at_limit", row.answers->at_limit}});
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
  if (!row.is_mean) json["falls_behind"] = row.falls_behind;
  if (row.ratio) json["ratio"] = *row.ratio;
  if (!row.ratio_interval) return json;
  json["ratio_ci95_low"] = row.ratio_interval->low;
  json["ratio_ci95_high"] = row.ratio_interval->high;
  return json;
}

}  // namespace tandem::eval
