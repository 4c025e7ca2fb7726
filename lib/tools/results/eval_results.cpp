#include "tools/results/eval_results.h"

#include <map>
#include <nlohmann/json.hpp>

#include "bench/record.h"
#include "bench/record_view.h"
#include "eval/report.h"
#include "io/file.h"
#include "io/json.h"
#include "recipe/fields_of.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {
namespace {

using bench::at;
using bench::cell;
using bench::Json;

constexpr const char* kAttentionNote =
    "Means per query head and token, in layers without full attention. Errors: relative to full "
    "attention over the same KV cache.\nranking loss: softmax mass that the exactly read tokens "
    "miss against as many best ones. selected, exact, fixed: shares of tokens. KiB: read per query "
    "head and token.\n";

std::vector<Json> records_of(const EvalResults& r, const std::vector<eval::ScoreRow>& rows,
                             const std::string& tool) {
  std::vector<io::Json> groups;
  for (const eval::ScoreRow& row : rows) groups.push_back(eval::score_json(row, r.policies));
  const auto add = [&](io::Json group, const char* task, size_t i) {
    group.update(
        {{"task", task}, {"policy", r.policies[i].name}, {"reference", r.policies[0].name}});
    groups.push_back(std::move(group));
  };
  for (size_t i = 0; r.log.text && i < r.log.text->size(); ++i)
    add(eval::quality_json((*r.log.text)[i], i == 0), "perplexity", i);
  for (size_t i = 1; r.log.attention && i < r.log.attention->size(); ++i)
    add(eval::attention_json((*r.log.attention)[i]), "attention", i);
  if (r.log.channels) {
    const ffn::Thresholds& t = r.log.channels->thresholds;
    groups.push_back({{"task", "channels"},
                      {"n_tokens", r.log.channels->n_tokens},
                      {"keep", t.keep},
                      {"thresholds", t.values}});
  }
  std::vector<Json> records;
  for (const io::Json& group : groups) {
    bench::Record record(tool);
    record.group("point") = r.recipe.at("sha256").get<std::string>().substr(0, 12);
    record.group("recipe") = r.recipe;
    if (!r.log.device.empty()) record.group("workload")["device"] = r.log.device;
    record.group("quality") = group;
    if (cli::is_interrupted()) record.group("status") = "partial";
    records.push_back(record.json());
  }
  return records;
}

std::vector<std::string> names_of(const std::vector<eval::NamedPolicy>& policies) {
  std::vector<std::string> names;
  for (const eval::NamedPolicy& policy : policies) names.push_back(policy.name);
  return names;
}

std::string tables_of(const EvalResults& r, const std::vector<eval::ScoreRow>& rows,
                      io::TableFormat format) {
  const std::vector<std::string> names = names_of(r.policies);
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "\n") + part; };
  if (!rows.empty()) add(eval::score_tables(rows, names, format));
  if (r.log.text) add(eval::text_table(*r.log.text, names).render(format));
  if (r.log.attention)
    add(eval::attention_table(*r.log.attention, names).render(format) + kAttentionNote);
  if (r.log.channels)
    text += fmt::format(
        "thresholds of {} layers, reached by {:.2f} % of activated gates over {} tokens, in {}\n",
        r.log.channels->thresholds.values.size(), 100 * r.log.channels->thresholds.keep,
        r.log.channels->n_tokens, r.settings.neurons.path.string());
  return text;
}

/// Tasks that the model cannot do compare nothing.
void warn_if_useless(cli::Context& cx, const std::vector<eval::ScoreRow>& rows) {
  std::map<std::pair<int64_t, std::string>, int> questions;  // by length and task
  double right = 0;
  for (const eval::ScoreRow& row : rows) {
    if (row.policy != 0 || row.is_mean) continue;
    questions[{row.length, row.task}] = row.n_cases;
    right += row.mean;
  }
  int n = 0;
  for (const auto& [subject, cases] : questions) n += cases;
  if (n > 0 && right == 0)
    cx.warn(
        fmt::format("full attention answers 0 of {} questions, so these tasks cannot compare "
                    "policies with this model. Try --task perplexity or --task attention",
                    n));
}

std::vector<std::string> quality_row(const Json& r) {
  const Json& q = at(r, "/quality");
  const auto number = [&](const char* key, const char* form) { return cell(at(q, key), form); };
  const Json& group = at(q, "/group");
  return {cell(at(q, "/task")),
          cell(at(q, "/policy")),
          group.is_null() ? number("/length", "{}") : cell(group),
          cell(at(q, "/protocol")),
          cell(at(q, "/score")),
          !at(q, "/n_cases").is_null()    ? number("/n_cases", "{}")
          : !at(q, "/n_tokens").is_null() ? number("/n_tokens", "{}")
                                          : number("/n_queries", "{}"),
          number("/correct", "{:.3f}"),
          at(q, "/ci95_low").is_null()
              ? ""
              : number("/ci95_low", "{:.2f}") + " .. " + number("/ci95_high", "{:.2f}"),
          number("/difference", "{:+.3f}"),
          number("/ppl/mean", "{:.3f}"),
          number("/kl_mean", "{:.4g}"),
          number("/error/mean", "{:.4f}")};
}

bench::RecordView quality_view() {
  return {.tools = {"pig-eval"},
          .takes = [](const Json&) { return true; },
          .columns = {{"task", io::Align::left},
                      {"policy", io::Align::left},
                      {"length"},
                      {"question", io::Align::left},
                      {"answers", io::Align::left},
                      {"n"},
                      {"right"},
                      {"95 %"},
                      {"against full"},
                      {"perplexity"},
                      {"KL mean"},
                      {"output error"}},
          .row = quality_row};
}

}  // namespace

void EvalResults::print(cli::Context& cx) const {
  auto rows = eval::summarize(settings, log.cases);
  for (const auto& more :
       {eval::summarize_own(settings, log.own), eval::summarize_answers(settings, log.answers)})
    rows.insert(rows.end(), more.begin(), more.end());
  cx.out.write(cx.format() == "text" || cx.format() == "md"
                   ? tables_of(*this, rows, bench::table_format(cx.format()))
                   : bench::render_records(records_of(*this, rows, cx.info.name), cx.format()));
  warn_if_useless(cx, rows);
}

int print_eval_of(cli::Context& cx, const std::filesystem::path& path) {
  const std::string text = io::read_file(path);
  const std::string first = text.substr(0, text.find('\n'));
  const io::Json header = io::Json::parse(first, nullptr, false);
  if (!header.is_object() || header.value("schema", io::Json()) != "tandem.eval/1")
    return print_records_of(cx, path, {quality_view()});
  const auto upgraded = [&](const io::Json& r) { return cx.upgraded(r); };
  const io::Json recipe = upgraded(io::get_object(header, "recipe", path.string()));
  const io::Json& effective = io::get_object(recipe, "effective", path.string());
  const recipe::Origin origin{.name = std::make_shared<const std::string>(path.string()),
                              .folder = {}};
  eval::Settings settings;
  recipe::Field fields = recipe::fields_of(settings);
  recipe::read_fields(fields,
                      recipe::node_of(io::get_object(effective, "eval", path.string()), origin));
  const auto policies = settings.all_policies();
  const eval::CaseLog log = eval::read_log(path, recipe, settings, names_of(policies), upgraded);
  if (log.whole_bytes < text.size())
    cx.warn(fmt::format("{}: the last line is incomplete and was skipped", path.string()));
  EvalResults{settings, policies, log, recipe}.print(cx);
  return 0;
}

}  // namespace tandem::tools
