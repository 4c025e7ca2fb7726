#include "tools/sequoia_replay_search.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/sha256.h"
#include "bench/record.h"
#include "decode/suggested_sampling.h"
#include "io/file.h"
#include "recipe/value_of.h"
#include "speculate/measure/timed_rounds.h"
#include "speculate/tree/tree_file.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kInterval = 1.96;  // standard errors on each side of a 95 % interval

AcceptBy rule_of(ReplayRule rule) {
  return rule == ReplayRule::sequoia ? AcceptBy::sequoia : AcceptBy::traversal;
}

/// Sizes to choose among by times: those of the timing table that the record has trees of.
std::vector<int> timed_sizes(const std::vector<speculate::StepCost>& buckets, int largest) {
  std::vector<int> sizes = speculate::timed_sizes(largest);
  sizes.erase(sizes.begin());  // a lone root is no speculation
  std::erase_if(sizes, [&](int n) {
    return std::ranges::any_of(
        buckets, [&](const speculate::StepCost& b) { return n > b.target.tokens.back(); });
  });
  return sizes;
}

std::string percent(const speculate::MeanOfRounds& gain) {
  return fmt::format("{:+.1f} % (+- {:.1f})", 100 * gain.mean, 100 * kInterval * gain.error);
}

}  // namespace

ReplaySearch::ReplaySearch(cli::Context& cx, const cli::Point<TreeSearchRecipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      where_(recipe_.replay.path.string()),
      rounds_(speculate::read_tree_rounds(recipe_.replay.path)),
      search_(rounds_, rule_of(recipe_.replay.rule), where_, cli::is_interrupted),
      buckets_(recipe_.steps()),
      sizes_(recipe_.tree.sizes) {
  check_run();
  if (cx.format() == "jsonl" && recipe_.tree.sizes.empty())
    throw recipe_error("tree.sizes",
                       "expected at least one size, since each jsonl record has one, found none")
        .hint("set sizes, or use --format json to choose one by times");
  bounds_ = {recipe_.tree.max_levels.value_or(rounds_.tree.levels()),
             recipe_.tree.max_branch.value_or(rounds_.tree.size())};
  if (!recipe_.accept.path.empty())
    acceptance_ = speculate::read_acceptance(recipe_.accept.path, recipe_.accept.layout);
  const int largest = search_.largest(bounds_);
  if (sizes_.empty()) sizes_ = timed_sizes(buckets_, largest);
  std::ranges::sort(sizes_);
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  if (sizes_.empty() || sizes_.front() < 2 || sizes_.back() > largest)
    throw recipe_error(
        "tree.sizes", "expected 2 to {} nodes, the range that {} recorded within the bounds{}",
        largest, where_, sizes_.empty() ? "" : fmt::format(", found {}", fmt::join(sizes_, ", ")))
        .hint("set smaller sizes, or record a larger accept.tree");
}

void ReplaySearch::check_run() const {
  if (recipe_.model.path.value.empty()) return;
  const auto seed = static_cast<uint64_t>(recipe_.run.seed);
  const decode::ModelFiles target = decode::open_model(recipe_.model, seed);
  speculate::RecordedRun run;
  run.target = target.name;
  run.target_fingerprint = target.fingerprint;
  if (!recipe_.spec.draft.path.value.empty()) {
    const decode::ModelFiles draft = decode::open_model(recipe_.spec.draft.path.value, seed);
    run.draft = draft.name;
    run.draft_fingerprint = draft.fingerprint;
  }
  run.sampling =
      decode::generate_spec(recipe_.sampling, recipe_.run.seed, 0, target.config, 0).sampler.rule;
  speculate::check_same_run(rounds_.run, run, where_);
}

std::optional<speculate::SubShape> ReplaySearch::start_of(int size) const {
  if (!acceptance_) return {};
  const int levels = std::min(bounds_.max_levels, size);
  const speculate::TreeTable table(acceptance_->first_children(bounds_.max_branch),
                                   {.max_size = size, .min_levels = levels, .max_levels = levels},
                                   recipe_.tree.algorithm, cli::is_interrupted);
  if (table.expected(size, levels))
    if (auto shape = speculate::shape_in(rounds_.tree, table.tree(size, levels))) return shape;
  throw input_error(where_, "lacks nodes of the tree of {} nodes that {} prefers", size,
                    recipe_.accept.path.string())
      .hint("record a larger accept.tree, or leave --accept out");
}

void ReplaySearch::print_plan() {
  cx_.out.write(fmt::format(
      "steps    {} recorded, {} nodes on {} levels, {} with {} at temperature {:.6g}\ntrees    {} "
      "sizes up to {} nodes, up to {} levels, for {}\n",
      rounds_.size(), rounds_.tree.size(), rounds_.tree.levels(), rounds_.run.target,
      rounds_.run.draft, rounds_.run.sampling.temperature, sizes_.size(), sizes_.back(),
      std::min(bounds_.max_levels, rounds_.tree.levels()), recipe::yaml_text(recipe_.replay.rule)));
}

void ReplaySearch::run() {
  cli::Progress progress(cx_.terminal, "search", static_cast<double>(sizes_.size()), "sizes");
  for (const int size : recipe_.tree.sizes.empty() ? std::vector<int>{} : sizes_) {
    found_.push_back(search_.find(size, bounds_, start_of(size)));
    progress.update(static_cast<double>(found_.size()));
  }
  for (const speculate::StepCost& bucket : buckets_) {
    Chosen& chosen = chosen_.emplace_back();
    chosen.context = bucket.context;
    chosen.plain_ms = bucket.target.at(1);
    chosen.choice = search_.choose(sizes_, bounds_, bucket);
    const double ms = chosen.choice.best.cost.ms_per_token;
    if (ms >= chosen.plain_ms)
      cx_.note(
          fmt::format("speculation does not pay: {:.4g} ms per token at best, {:.4g} ms without",
                      ms, chosen.plain_ms));
  }
  if (cx_.format() == "jsonl") return print_record();
  write_files();
  if (recipe_.output.path == "-") return;
  if (cx_.format() == "json")
    print_json();
  else
    print_tables();
}

speculate::TreeFile ReplaySearch::tree_to_write() const {
  const speculate::SubShape& shape =
      chosen_.empty() ? found_.front().best : chosen_.front().choice.shape;
  speculate::TreeFile file;
  file.tree = tree_of(shape);
  file.expected_tokens = search_.all().tokens(shape);
  if (!chosen_.empty()) file.cost = chosen_.front().choice.best.cost;
  file.replay = {.file = recipe_.replay.path.filename().string(),
                 .rule = recipe::yaml_text(recipe_.replay.rule),
                 .sha256 = sha256_hex(io::read_file(recipe_.replay.path))};
  return file;
}

void ReplaySearch::write_files() {
  if (recipe_.output.path.empty()) return;
  cli::ResultFile file(recipe_.output.path, cx_.file_mode(), cx_.out);
  file.write(speculate::tree_json(tree_to_write()));
  file.commit();
}

void ReplaySearch::print_json() {
  Json trees = Json::array();
  for (const speculate::FoundShape& f : found_) {
    const speculate::TokenTree tree = tree_of(f.best);
    trees.push_back({{"size", f.size},
                     {"start_tokens", f.start_tokens.mean},
                     {"tokens", f.best_tokens.mean},
                     {"tokens_ci95", kInterval * f.best_tokens.error},
                     {"gain", f.gain.mean},
                     {"gain_ci95", kInterval * f.gain.error},
                     {"searched_tokens", f.searched_tokens},
                     {"moves", f.moves},
                     {"levels", tree.levels()},
                     {"widths", tree.widths()}});
  }
  Json result = {{"rule", recipe::yaml_text(recipe_.replay.rule)},
                 {"rounds", rounds_.size()},
                 {"trees", std::move(trees)}};
  for (const Chosen& c : chosen_) {
    const speculate::PricedTree& best = c.choice.best;
    result["choices"].push_back({{"context", c.context > 0 ? Json(c.context) : Json()},
                                 {"size", best.size},
                                 {"levels", best.levels},
                                 {"widths", tree_of(c.choice.shape).widths()},
                                 {"expected_tokens", best.expected},
                                 {"ms_per_token", best.cost.ms_per_token},
                                 {"speedup", c.plain_ms / best.cost.ms_per_token}});
  }
  cx_.out.line(result.dump());
}

void ReplaySearch::print_tables() {
  using io::Align;
  const io::TableFormat format = bench::table_format(cx_.format());
  if (!found_.empty()) {
    io::Table trees({{"size"},
                     {acceptance_ ? "vector's tree" : "Sequoia's tree"},
                     {"searched tree"},
                     {"gain"},
                     {"levels"},
                     {"nodes per level", Align::left}});
    for (const speculate::FoundShape& f : found_) {
      const speculate::TokenTree tree = tree_of(f.best);
      trees.add_row({fmt::format("{}", f.size), fmt::format("{:.4f}", f.start_tokens.mean),
                     fmt::format("{:.4f}", f.best_tokens.mean), percent(f.gain),
                     fmt::format("{}", tree.levels()),
                     fmt::format("{}", fmt::join(tree.widths(), " "))});
    }
    cx_.out.write(trees.render(format));
    cx_.note(fmt::format(
        "tokens per step by {}, on the third of the texts that was held out to estimate the gain",
        recipe::yaml_text(recipe_.replay.rule)));
  }
  if (chosen_.empty()) return;
  io::Table choices({{"context"},
                     {"size"},
                     {"levels"},
                     {"tokens/step"},
                     {"ms/token"},
                     {"speedup"},
                     {"nodes per level", Align::left}});
  for (const Chosen& c : chosen_) {
    const speculate::PricedTree& best = c.choice.best;
    choices.add_row({c.context > 0 ? fmt::format("{}", c.context) : "",
                     fmt::format("{}", best.size), fmt::format("{}", best.levels),
                     fmt::format("{:.4f}", best.expected),
                     fmt::format("{:.4f}", best.cost.ms_per_token),
                     fmt::format("{:.3f}", c.plain_ms / best.cost.ms_per_token),
                     fmt::format("{}", fmt::join(tree_of(c.choice.shape).widths(), " "))});
  }
  cx_.out.write((found_.empty() ? "" : "\n") + choices.render(format));
}

void ReplaySearch::print_record() {
  for (const speculate::FoundShape& f : found_) {
    bench::Record record = named(bench::Record(cx_.info.name), point_);
    record.group("workload") = {{"tree_nodes", f.size},
                                {"rounds", rounds_.size()},
                                {"record", recipe_.replay.path.filename().string()},
                                {"verify", recipe::yaml_text(recipe_.replay.rule)}};
    record.group("spec") = {{"tree", {{"size", f.size}, {"levels", tree_of(f.best).levels()}}},
                            {"expected_tokens", f.best_tokens.mean},
                            {"expected_tokens_before", f.start_tokens.mean},
                            {"gain", f.gain.mean},
                            {"gain_ci95", kInterval * f.gain.error}};
    cx_.out.write(record.line());
  }
}

}  // namespace tandem::tools
