#include "tools/sequoia_tree_search.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "bench/record.h"
#include "recipe/fields_of.h"
#include "recipe/value_of.h"
#include "speculate/tree/tree_drawing.h"
#include "speculate/tree/tree_file.h"
#include "tensor/memory_plan.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/results/bench_results.h"
#include "tools/sequoia_replay_search.h"

namespace tandem::tools {
namespace {

/// The sizes of trees that every bucket has been measured at or beyond.
std::vector<int> measured_sizes(const std::vector<speculate::StepCost>& buckets) {
  int last = TreeSection::kMostNodes;
  std::set<int> sizes;
  for (const speculate::StepCost& b : buckets) {
    sizes.insert(b.target.tokens.begin(), b.target.tokens.end());
    last = std::min(last, b.target.tokens.back());
  }
  return {sizes.begin(), sizes.upper_bound(last)};
}

}  // namespace

void TimingSection::check(recipe::Problems& p) const {
  if (!path.empty() && (!sizes.empty() || !target_ms.empty() || !draft_ms.empty()))
    p.field("path", "timing.path: expected times in the file or in the recipe, found both");
  if (target_ms.size() != sizes.size())
    p.field("target_ms",
            "timing.target_ms: expected one time for each size, found {} times for {} sizes",
            target_ms.size(), sizes.size());
  if (!sizes.empty() && draft_ms.empty())
    p.field("draft_ms", "timing.draft_ms: expected the time of a draft forward, found none");
  if (draft_widths.empty() ? draft_ms.size() > 1 : draft_widths.size() != draft_ms.size())
    p.field("draft_ms",
            "timing.draft_ms: expected one time for each width, found {} times for {} widths",
            draft_ms.size(), draft_widths.size());
}

speculate::TimingTable TimingSection::table() const {
  if (!given()) return {};
  speculate::TimingTable table;
  if (path.empty()) {
    table.buckets = {{.context = static_cast<int>(context.value),
                      .target = {sizes, target_ms},
                      .draft = {draft_widths.empty() ? std::vector{1} : draft_widths, draft_ms}}};
    speculate::check_timing(table, "timing");
  } else {
    table = speculate::read_timing(path);
  }
  for (speculate::StepCost& b : table.buckets) {
    b.overhead_ms = overhead_ms.value_or(b.overhead_ms);
    b.skip_deepest = b.skip_deepest || skip_deepest;
  }
  return table;
}

void TreeSearchRecipe::check(recipe::Problems& p) const {
  refuse_model_sampling(sampling, p);
  if (timing.measure) {
    if (model.path.value.empty())
      p.field("model.path", "model.path: expected the model to time, found none");
    spec.require_draft(p);
    if (timing.given())
      p.field("timing.measure",
              "timing.measure: cannot be combined with given times; leave one of them out");
    if (!replay.path.empty())
      p.field("replay.path", "replay.path: has no effect on measured times; leave it out");
    return;
  }
  if (accept.path.empty() && replay.path.empty())
    p.field(
        "accept.path",
        "accept.path: expected an acceptance vector, found none; sequoia-acceptance measures one");
  if (!replay.path.empty() && !(output.svg.empty() && output.dot.empty()))
    p.field("output",
            "output: drawings need an acceptance vector, which --replay does not have; leave "
            "--svg, --dot or --replay out");
  if (tree.sizes.empty() && !timing.given())
    p.field("tree.sizes",
            "tree.sizes: expected sizes such as [64, 128], or a timing table to choose by");
  if (output.any() && tree.sizes.size() != 1 && !timing.given())
    p.field("tree.sizes",
            "tree.sizes: expected one size or a timing table to choose by, found {} sizes; an "
            "output file holds one tree",
            tree.sizes.size());
  if (timing.skip_deepest && !timing.given())
    p.field("timing.skip_deepest", "timing.skip_deepest: needs a timing table, found none");
}

std::vector<speculate::StepCost> TreeSearchRecipe::steps() const {
  speculate::TimingTable table = timing.table();
  const int context = static_cast<int>(timing.context.value);
  if (context > 0 && timing.given()) return {table.bucket(context, "timing.context")};
  if (table.buckets.size() > 1 && output.any())
    throw recipe_error(
        "output",
        "expected one context in the timing table, found {}; an output file holds one tree",
        table.buckets.size())
        .hint("choose a context with -s timing.context=N");
  return std::move(table.buckets);
}

TreeSearch::TreeSearch(cli::Context& cx, const cli::Point<TreeSearchRecipe>& point)
    : cx_(cx),
      point_(point),
      recipe_(point.recipe),
      acceptance_(speculate::read_acceptance(recipe_.accept.path, recipe_.accept.layout)),
      buckets_(recipe_.steps()),
      sizes_(recipe_.tree.sizes) {
  if (recipe_.tree.max_branch) acceptance_ = acceptance_.first_children(*recipe_.tree.max_branch);
  if (sizes_.empty()) sizes_ = measured_sizes(buckets_);
  for (const speculate::StepCost& b : buckets_)
    if (max_size() > b.target.tokens.back())
      throw recipe_error("tree.sizes", "has {} nodes, but the target's times end at {} tokens",
                         max_size(), b.target.tokens.back())
          .hint("set smaller sizes, or measure larger trees");
  max_levels_ = std::min(recipe_.tree.max_levels.value_or(max_size()), max_size());
  if (cx.dry_run()) return;
  for (const auto& path : {recipe_.output.svg, recipe_.output.dot})
    if (!path.empty()) cli::check_new_file(path, cx.file_mode());
}

int TreeSearch::max_size() const { return std::ranges::max(sizes_); }

size_t TreeSearch::max_branch() const {
  return std::ranges::max(acceptance_.rows, {}, &std::vector<double>::size).size();
}

void TreeSearch::print_plan() {
  const size_t branch = max_branch();
  const auto n = static_cast<size_t>(max_size());
  cx_.out.write(fmt::format(
      "vector   {} entries, {} depth rows, method {}, from {}\ntrees    {} sizes up to {} nodes, "
      "up to {} levels, up to {} children\nmemory   up to {} for dynamic programming\n",
      branch, acceptance_.rows.size(), acceptance_.method.empty() ? "unknown" : acceptance_.method,
      acceptance_.file, sizes_.size(), n, max_levels_, branch,
      format_bytes(n * (std::min(branch, n) + 1) * static_cast<size_t>(max_levels_) *
                   sizeof(double))));
  if (!buckets_.empty())
    cx_.out.write(fmt::format("timing   {} contexts, target measured up to {} tokens\n",
                              buckets_.size(), buckets_.front().target.tokens.back()));
}

speculate::TreeTable TreeSearch::table_of(int min_levels) const {
  return {acceptance_,
          {.max_size = max_size(), .min_levels = min_levels, .max_levels = max_levels_},
          recipe_.tree.algorithm,
          cli::is_interrupted};
}

void TreeSearch::run() {
  if (cx_.format() == "jsonl") return print_record();
  const Stopwatch clock;
  // Every bound of levels is asked for only if one of them is to be chosen.
  table_.emplace(table_of(buckets_.empty() ? max_levels_ : 1));
  for (const int size : sizes_) {
    Found& found = found_.emplace_back();
    found.size = size;
    found.expected = table_->expected(size, max_levels_);
    if (found.expected) found.tree = table_->tree(size, max_levels_);
  }
  cx_.verbose(fmt::format("{} sizes, up to {} levels, by {}: {:.1f} ms", max_size(),
                          table_->levels(), recipe::yaml_text(table_->algorithm()),
                          1000 * clock.seconds()));
  std::vector<int> rising(sizes_);
  std::ranges::sort(rising);
  rising.erase(std::unique(rising.begin(), rising.end()), rising.end());
  for (const speculate::StepCost& bucket : buckets_) {
    Chosen& chosen = chosen_.emplace_back();
    chosen.context = bucket.context;
    chosen.choice = speculate::choose_tree(*table_, acceptance_, rising, max_levels_, bucket);
    const speculate::PricedTree& best = chosen.choice.best;
    chosen.tree = table_->tree(best.size, best.levels);
    if (chosen.choice.speedup() <= 1)
      cx_.note(
          fmt::format("speculation does not pay{}: {:.4g} ms per token at best, {:.4g} ms without",
                      bucket.context > 0 ? fmt::format(" at {} tokens", bucket.context) : "",
                      best.cost.ms_per_token, chosen.choice.plain_ms));
  }
  write_files();
  if (recipe_.output.path == "-") return;
  if (cx_.format() == "json")
    print_json();
  else
    print_tables();
}

speculate::TreeFile TreeSearch::tree_to_write() const {
  speculate::TreeFile file;
  file.algorithm = table_->algorithm();
  file.vector_file = std::filesystem::path(acceptance_.file).filename().string();
  file.method = acceptance_.method;
  file.vector_sha256 = acceptance_.sha256;
  if (!chosen_.empty()) {
    file.tree = chosen_.front().tree;
    file.cost = chosen_.front().choice.best.cost;
  } else if (found_.front().tree) {
    file.tree = *found_.front().tree;
  } else {
    throw recipe_error("tree.sizes",
                       "no tree has {} nodes on {} levels with at most {} children a node",
                       found_.front().size, max_levels_, acceptance_.row(0).size())
        .hint("raise tree.max_levels or tree.max_branch, or set a smaller size");
  }
  file.expected_tokens = speculate::expected_tokens(file.tree, acceptance_);
  return file;
}

void TreeSearch::write_files() {
  const TreeOutput& output = recipe_.output;
  if (!output.any()) return;
  const speculate::TreeFile tree = tree_to_write();
  const auto write = [&](const std::filesystem::path& path, const std::string& text) {
    if (path.empty()) return;
    cli::ResultFile file(path, cx_.file_mode(), cx_.out);
    file.write(text);
    file.commit();
  };
  write(output.path, speculate::tree_json(tree));
  write(output.svg, speculate::tree_svg(tree.tree, acceptance_));
  write(output.dot, speculate::tree_dot(tree.tree, acceptance_));
}

int SequoiaTreeSearch::run() {
  if (points_.front().recipe.timing.measure) return measure_timing(cx_, points_.front().recipe);
  size_t n_failed = 0;
  int failure = 0;
  for (const cli::Point<TreeSearchRecipe>& point : points_) {
    try {
      const auto search = [&](auto&& body) { cx_.dry_run() ? body.print_plan() : body.run(); };
      if (point.recipe.replay.path.empty())
        search(TreeSearch(cx_, point));
      else
        search(ReplaySearch(cx_, point));
    } catch (const Error& e) {
      if (points_.size() == 1 || e.kind() == ErrorKind::interrupted) throw;
      bench::Record record = named(bench::Record(cx_.info.name), point);
      record.set_failed(e);
      if (cx_.format() == "jsonl") cx_.out.write(record.line());
      cx_.terminal.error(e);
      failure = exit_status(e.kind());
      ++n_failed;
    }
  }
  constexpr int kPartial = 8;
  return n_failed > 0 && n_failed < points_.size() ? kPartial : failure;
}

}  // namespace tandem::tools

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::optional<tandem::speculate::VectorLayout>&);

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::TreeSearchRecipe&);
