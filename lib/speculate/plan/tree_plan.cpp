#include "speculate/plan/tree_plan.h"
#include "model/spec/weight_formats.h"

#include <fmt/ranges.h>

#include <bit>
#include <filesystem>

#include "base/clock.h"
#include "base/cpu_features.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "io/cache_dir.h"
#include "io/file.h"
#include "kv/policy.h"
#include "machine/hardware.h"
#include "recipe/fields_of.h"
#include "tensor/cuda.h"

namespace tandem::speculate {

using Json = nlohmann::ordered_json;

RoundTimesSpec timed_rounds(const Shape& shape, const decode::SamplerSpec& sampler, int batch,
                            int context) {
  RoundTimesSpec timed;
  // A power of two, so that texts of other lengths find the times kept.
  timed.contexts = {static_cast<int>(std::bit_floor(static_cast<unsigned>(context)))};
  timed.largest_tree = most_nodes(shape, batch);
  timed.batch = batch;
  timed.sampler = sampler;
  return timed;
}

TimingTable measure_times(const decode::RunContext& cx, Reader target, Reader draft,
                          const RoundTimesSpec& spec) {
  const auto progress = cx.progress("time speculation steps", 1, "");
  const TimingTable table =
      measure_rounds(target, draft, spec, [&](double share) { return progress->go_on(share); });
  if (!cx.group()) return table;
  // All choose by rank 0's times.
  return parse_timing(cx.group()->agree_text(timing_json(table, Json::object())),
                      "times of rank 0");
}

Json times_context(const ModelPair& pair, const RoundTimesSpec& spec) {
  const Device device = pair.device();
  const bool on_gpu = device.kind == Device::Kind::cuda;
  const ops::SampleRule& rule = spec.sampler.rule;
  recipe::Cache cache = pair.cache(), draft_cache = pair.draft_cache();
  Json about = {{"target", pair.target().name},
                {"draft", pair.draft_name()},
                {"draft_cache", recipe::to_json(recipe::fields_of(draft_cache))},
                {"fingerprints", {pair.target().fingerprint, pair.draft().fingerprint}},
                {"device", on_gpu ? cuda::device_info(device.index).name
                                  : machine::read_host_info().cpu_model},
                {"threads", max_threads()},
                {"isa", isa_name(isa_in_use())},
                {"compute", dtype_name(pair.target_spec().compute)},
                {"layers_streamed", pair.target_spec().savings.n_streamed},
                {"batch", spec.batch},
                {"temperature", rule.temperature},
                {"top_k", rule.top_k},
                {"top_p", rule.top_p},
                {"min_p", rule.min_p},
                {"repetition_penalty", rule.repetition_penalty}};
  for (const auto* files : {&pair.target(), &pair.draft()})
    if (const auto& formats = files->config.formats)
      about["weights"].push_back({model::formats_text(files->config, pair.compute()),
                                  formats->int8_inputs ? "int8 activations" : ""});
  if (const int n = pair.target().shard.n_ranks; n > 1) about["ranks"] = n;
  if (!kv::needs_of(cache).reads_all) about["cache"] = recipe::to_json(recipe::fields_of(cache));
  if (recipe::Sparse sparse = pair.self_sparse(); sparse.any())
    about["draft_sparse"] = recipe::to_json(recipe::fields_of(sparse));
  return about;
}

KeptTimes::KeptTimes(const ModelPair& pair, const RoundTimesSpec& spec, const std::string& of)
    : about_(times_context(pair, spec)) {
  if (!of.empty()) {
    recipe::Cache self = pair.self_cache();
    about_["rounds"] = of;
    about_["self_cache"] = recipe::to_json(recipe::fields_of(self));
  }
  Json key = about_;
  key["contexts"] = spec.contexts;
  key["largest_tree"] = spec.largest_tree;
  file_ = io::cache_file(fmt::format("tree-times-{}.json", sha256_hex(key.dump()).substr(0, 16)));
}

std::optional<TimingTable> KeptTimes::read(const decode::RunContext& cx) const {
  const bool is_here = cx.place().rank == 0 && std::filesystem::exists(file_);
  if (is_here) cx.verbose(fmt::format("speculation step times from {}", file_.string()));
  if (!cx.group()) return is_here ? std::optional(read_timing(file_)) : std::nullopt;
  const std::string text = cx.group()->agree_text(is_here ? io::read_file(file_) : std::string());
  return text.empty() ? std::nullopt : std::optional(parse_timing(text, file_.string()));
}

void KeptTimes::write(const decode::RunContext& cx, const TimingTable& table) const {
  if (cx.place().rank > 0) return;
  if (io::keep(file_, timing_json(table, about_)))
    cx.verbose(fmt::format("saved as {}", file_.string()));
}

MeasuredAcceptance measure_acceptance(const decode::RunContext& cx, const GenerateRecipe& recipe,
                                      const ModelPair::Engines& engines,
                                      std::span<const int32_t> prompt, decode::GenerateSpec how,
                                      int batch) {
  constexpr int kMostTokens = 64, kMostChildren = 16;
  const int width = std::min(kMostChildren, most_nodes(recipe.spec.shape, batch) - 1);
  std::vector<int64_t> accepted(static_cast<size_t>(width), 0);
  const auto rounds =
      make_rounds(recipe, engines, star_tree(width), {.on_round = [&](const RoundEvent& e) {
                    if (e.accepted > 0) ++accepted[static_cast<size_t>(e.path.front() - 1)];
                  }});
  how.sampler.seed = ~how.sampler.seed;  // seeds of recipes are not negative
  how.max_tokens = std::min(how.max_tokens, kMostTokens);
  const auto all = static_cast<double>(prompt.size()) + how.max_tokens;
  const auto progress = cx.progress("measure acceptance", all, "tok");
  double done = 0;
  decode::GenerateEvents events;
  events.on_prefill = [&](int64_t read, int64_t) {
    progress->update(done = static_cast<double>(read));
  };
  events.on_token = [&](const decode::TokenEvent&) { progress->update(++done); };
  events.interrupted = [&cx] { return cx.agree_interrupted(); };
  const decode::Request request{.tokens = {prompt.begin(), prompt.end()}};
  const Stopwatch watch;
  decode::generate(*engines.target, *rounds, {&request, 1}, how, events);
  MeasuredAcceptance measured{.rounds = rounds->stats().rounds, .seconds = watch.seconds()};
  while (accepted.size() > 1 && accepted.back() == 0) accepted.pop_back();
  std::vector<double>& row = measured.vector.rows.emplace_back();
  // One round more, without an acceptance: a few rounds must not predict chains without an end.
  for (const int64_t n : accepted)
    row.push_back(static_cast<double>(n) / static_cast<double>(measured.rounds + 1));
  cx.note(fmt::format("tree     acceptance measured over {} speculation steps in {:.2f} s: {:.2f}",
                      measured.rounds, measured.seconds, fmt::join(row, " ")));
  return measured;
}

Json TreePlan::json() const {
  if (!predicted) return {};
  Json j = {{"nodes", predicted->size},
            {"levels", predicted->levels},
            {"expected_tokens", predicted->expected},
            {"ms_per_token", predicted->cost.ms_per_token},
            {"plain_ms_per_token", plain_ms},
            {"speedup", plain_ms / predicted->cost.ms_per_token}};
  if (measured)
    j["acceptance"] = {{"p", measured->vector.rows.front()},
                       {"rounds", measured->rounds},
                       {"seconds", measured->seconds}};
  return j;
}

std::optional<TreeRounds> recorded_rounds(const Shape& section, const ModelPair& pair,
                                          const ops::SampleRule& sampling) {
  if (section.replay.empty()) return {};
  TreeRounds rounds = read_tree_rounds(section.replay);
  check_same_run(rounds.run,
                 {.target = pair.target().name,
                  .draft = pair.draft().name,
                  .target_fingerprint = pair.target().fingerprint,
                  .draft_fingerprint = pair.draft().fingerprint,
                  .verify = {},
                  .sampling = sampling},
                 section.replay.string());
  return rounds;
}

namespace {

/// How the tree is found, and priced.
struct Pricing {
  const StepCost& steps;
  std::vector<int> sizes;
  int max_levels;
};

void plan_by_vector(const decode::RunContext& cx, const Shape& section,
                    const std::optional<TokenTree>& given, const Pricing& pricing, bool is_greedy,
                    TreePlan& plan) {
  const AcceptanceVector vector =
      plan.measured ? plan.measured->vector : read_acceptance(section.accept);
  const char* method = is_greedy ? "topk-greedy" : "sequoia";
  if (!plan.measured && vector.method != method)
    cx.warn(fmt::format("{}: measured for '{}', but this run verifies by '{}'",
                        section.accept.string(), vector.method, method));
  if (given) {
    plan.predicted = price_tree(*given, expected_tokens(*given, vector), pricing.steps);
    return;
  }
  const TreeTable table(vector,
                        {.max_size = pricing.sizes.back(), .max_levels = pricing.max_levels});
  const TreeChoice choice =
      choose_tree(table, vector, pricing.sizes, pricing.max_levels, pricing.steps);
  plan.predicted = choice.best;
  plan.tree = table.tree(choice.best.size, choice.best.levels);
}

void plan_by_replay(const decode::RunContext& cx, const Shape& section,
                    const TreeEvidence& evidence, const std::optional<TokenTree>& given,
                    Pricing pricing, TreePlan& plan) {
  const AcceptBy rule =
      evidence.verify == VerifyChoice::sequoia ? AcceptBy::sequoia : AcceptBy::traversal;
  const std::string where = section.replay.string();
  const ShapeSearch search(*evidence.rounds, rule, where, [&cx] { return cx.is_interrupted(); });
  const TokenTree& recorded = evidence.rounds->tree;
  if (given) {
    const auto shape = shape_in(recorded, *given);
    if (!shape)
      throw input_error(where, "lacks nodes of the chosen tree")
          .hint("record a larger accept.tree, or leave spec.shape.replay out");
    plan.predicted = price_tree(*given, search.all().tokens(*shape), pricing.steps);
    return;
  }
  const ShapeSearch::Bounds bounds{pricing.max_levels};
  const int largest = search.largest(bounds);
  std::erase_if(pricing.sizes, [&](int n) { return n > largest; });
  const ShapeSearch::Choice choice = search.choose(pricing.sizes, bounds, pricing.steps);
  plan.predicted = choice.best;
  plan.tree = tree_of(choice.shape, recorded);
}

}  // namespace

TreePlan plan_tree(const decode::RunContext& cx, const Shape& section, const TreeEvidence& evidence,
                   const std::optional<TokenTree>& given, const TimingTable& times,
                   const RoundTimesSpec& timed, int context) {
  TreePlan plan;
  if (given) plan.tree = *given;
  plan.measured = evidence.measured;
  const int nodes = timed.largest_tree;
  Pricing pricing{.steps = section.timing.empty() ? times.buckets.front()
                                                  : times.bucket(context, "spec.shape.timing"),
                  .sizes = timed_sizes(nodes),
                  .max_levels = std::min(section.max_levels.value_or(nodes), nodes)};
  pricing.sizes.erase(pricing.sizes.begin());  // a lone root is no speculation
  plan.plain_ms = pricing.steps.plain_ms();
  if (evidence.rounds)
    plan_by_replay(cx, section, evidence, given, pricing, plan);
  else
    plan_by_vector(cx, section, given, pricing, timed.sampler.rule.temperature == 0, plan);
  if (given) return plan;
  const PricedTree& best = *plan.predicted;
  cx.note(
      fmt::format("tree     {} nodes on {} levels ({}), expected {:.2f} tokens per step and {:.3f} "
                  "ms per token, {:.3f} without",
                  best.size, best.levels, fmt::join(plan.tree.widths(), " "), best.expected,
                  best.cost.ms_per_token, plan.plain_ms));
  return plan;
}

}  // namespace tandem::speculate
