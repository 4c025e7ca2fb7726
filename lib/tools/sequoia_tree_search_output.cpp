#include <fmt/ranges.h>

#include <algorithm>

#include "bench/harness.h"
#include "bench/record.h"
#include "tools/results/bench_results.h"
#include "tools/sequoia_tree_search.h"

// What sequoia-tree-search prints, point by point.
namespace tandem::tools {
namespace {

using io::Align;
using Json = nlohmann::ordered_json;

/// A number with the digits that mean something: sums of products of doubles keep fifteen.
Json number(double x) { return std::stod(fmt::format("{:.15g}", x)); }

std::string joined(const std::vector<int>& list) { return fmt::format("{}", fmt::join(list, " ")); }

Json priced_json(const speculate::PricedTree& tree, double plain_ms) {
  return {{"size", tree.size},
          {"levels", tree.levels},
          {"expected_tokens", number(tree.expected)},
          {"ms_per_token", number(tree.cost.ms_per_token)},
          {"speedup", number(plain_ms / tree.cost.ms_per_token)}};
}

std::vector<std::string> priced_row(const std::string& name, const speculate::PricedTree& tree,
                                    double plain_ms) {
  return {name,
          fmt::format("{}", tree.size),
          fmt::format("{}", tree.levels),
          fmt::format("{:.4f}", tree.expected),
          fmt::format("{:.3f}", tree.cost.target_ms),
          fmt::format("{:.3f}", tree.cost.drafts_ms()),
          fmt::format("{:.4f}", tree.cost.ms_per_token),
          fmt::format("{:.3f}", plain_ms / tree.cost.ms_per_token)};
}

}  // namespace

void TreeSearch::print_json() {
  Json trees = Json::array();
  for (const Found& f : found_)
    trees.push_back({{"size", f.size},
                     {"expected_tokens", f.expected ? number(*f.expected) : Json()},
                     {"levels", f.tree ? Json(f.tree->levels()) : Json()},
                     {"widths", f.tree ? Json(f.tree->widths()) : Json()},
                     {"algorithm", recipe::yaml_text(table_->algorithm())}});
  Json result = {{"trees", std::move(trees)}};
  for (const Chosen& c : chosen_) {
    const speculate::TreeChoice& choice = c.choice;
    Json best = priced_json(choice.best, choice.plain_ms);
    best["widths"] = c.tree.widths();
    Json item = {
        {"context", c.context > 0 ? Json(c.context) : Json()},
        {"best", std::move(best)},
        {"runner_up", choice.runner_up ? priced_json(*choice.runner_up, choice.plain_ms) : Json()},
        {"chain", choice.chain ? priced_json(*choice.chain, choice.plain_ms) : Json()},
        {"no_speculation", {{"ms_per_token", number(choice.plain_ms)}}},
        {"speculate", choice.speedup() > 1}};
    for (const speculate::Sensitivity& s : choice.sensitivity)
      item["sensitivity"].push_back(
          {{"change", s.change}, {"size", s.size}, {"levels", s.levels}, {"loss", number(s.loss)}});
    result["choices"].push_back(std::move(item));
  }
  cx_.out.line(result.dump());
}

void TreeSearch::print_tables() {
  const io::TableFormat format = bench::table_format(cx_.format());
  io::Table trees({{"size"},
                   {"tokens/step"},
                   {"levels"},
                   {"algorithm", Align::left},
                   {"nodes per level", Align::left}});
  for (const Found& f : found_)
    trees.add_row({fmt::format("{}", f.size),
                   f.expected                       ? fmt::format("{:.6f}", *f.expected)
                   : format == io::TableFormat::csv ? ""
                                                    : "none",
                   f.tree ? fmt::format("{}", f.tree->levels()) : "",
                   recipe::yaml_text(table_->algorithm()), f.tree ? joined(f.tree->widths()) : ""});
  cx_.out.write(trees.render(format));
  for (const Chosen& c : chosen_) {
    const speculate::TreeChoice& choice = c.choice;
    io::Table priced(
        {{c.context > 0 ? fmt::format("at {} tokens", c.context) : "choice", Align::left},
         {"size"},
         {"levels"},
         {"tokens/step"},
         {"target ms"},
         {"draft ms"},
         {"ms/token"},
         {"speedup"}});
    priced.add_row(priced_row("best", choice.best, choice.plain_ms));
    if (choice.runner_up)
      priced.add_row(priced_row("runner-up", *choice.runner_up, choice.plain_ms));
    if (choice.chain)
      priced.add_row(priced_row("best linear draft", *choice.chain, choice.plain_ms));
    priced.add_row({"no speculation", "1", "1", "1.0000", fmt::format("{:.3f}", choice.plain_ms),
                    "", fmt::format("{:.4f}", choice.plain_ms), "1.000"});
    io::Table changes(
        {{"if times were", Align::left}, {"size"}, {"levels"}, {"% lost with the best tree"}});
    for (const speculate::Sensitivity& s : choice.sensitivity)
      changes.add_row({s.change, fmt::format("{}", s.size), fmt::format("{}", s.levels),
                       fmt::format("{:.2f}", 100 * s.loss)});
    cx_.out.write("\n" + priced.render(format) + "\n" + changes.render(format));
  }
}

void TreeSearch::print_record() {
  std::optional<speculate::TokenTree> tree;
  speculate::TreeAlgorithm algorithm{};
  const bench::MeasureRules rules{.min_seconds = 0.5, .max_runs = 100};
  const bench::Samples samples = bench::measure(
      [&] {
        const speculate::TreeTable table = table_of(1);
        algorithm = table.algorithm();
        if (table.expected(max_size(), max_levels_)) tree = table.tree(max_size(), max_levels_);
      },
      rules);
  const size_t branch = max_branch();
  bench::Record record = named(bench::Record(cx_.info.name), point_);
  record.group("workload") = {
      {"tree_nodes", max_size()},
      {"max_levels", max_levels_},
      {"max_branch", branch},
      {"algorithm", recipe::yaml_text(algorithm)},
      {"vector", std::filesystem::path(acceptance_.file).filename().string()}};
  record.set_timing("optimizer", samples);
  if (tree)
    record.group("spec") = {
        {"tree", {{"size", tree->size()}, {"levels", tree->levels()}}},
        {"expected_tokens", number(speculate::expected_tokens(*tree, acceptance_))}};
  cx_.out.write(record.line());
}

}  // namespace tandem::tools
