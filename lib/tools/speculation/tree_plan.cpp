#include "tools/speculation/tree_plan.h"

#include <fmt/ranges.h>

#include <bit>
#include <filesystem>

#include "base/cpu_features.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "bench/hardware.h"
#include "io/cache_dir.h"
#include "recipe/fields_of.h"
#include "tensor/cuda.h"

namespace tandem::tools {

using Json = nlohmann::ordered_json;

bench::RoundTimesSpec timed_rounds(const DraftTreeSection& tree, const decode::SamplerSpec& sampler,
                                   int batch, int context) {
  bench::RoundTimesSpec timed;
  // A power of two, so that texts of other lengths find the times kept.
  timed.contexts = {static_cast<int>(std::bit_floor(static_cast<unsigned>(context)))};
  timed.largest_tree = most_nodes(tree, batch);
  timed.batch = batch;
  timed.sampler = sampler;
  return timed;
}

speculate::TimingTable measure_times(cli::Context& cx, const ModelPair::Engines& engines,
                                     const bench::RoundTimesSpec& spec) {
  cli::Progress progress(cx.terminal, "time rounds", 1, "");
  return bench::measure_rounds(*engines.target, engines.drafter(), spec,
                               [&](double share) { return progress.go_on(share); });
}

Json times_context(const ModelPair& pair, const bench::RoundTimesSpec& spec) {
  const Device device = pair.device();
  const bool on_gpu = device.kind == Device::Kind::cuda;
  const ops::SampleRule& rule = spec.sampler.rule;
  recipe::Cache draft_cache = pair.draft_cache();
  return {
      {"target", pair.target().name},
      {"draft", pair.proposer() == Proposer::target ? "self" : pair.draft().name},
      {"draft_cache", recipe::to_json(recipe::fields_of(draft_cache))},
      {"fingerprints", {pair.target().fingerprint, pair.draft().fingerprint}},
      {"device", on_gpu ? cuda::device_info(device.index).name : bench::read_host_info().cpu_model},
      {"threads", max_threads()},
      {"isa", isa_name(isa_in_use())},
      {"compute", dtype_name(pair.target_spec().compute)},
      {"layers_streamed", pair.target_spec().n_streamed},
      {"batch", spec.batch},
      {"temperature", rule.temperature},
      {"top_k", rule.top_k},
      {"top_p", rule.top_p},
      {"min_p", rule.min_p},
      {"repetition_penalty", rule.repetition_penalty}};
}

KeptTimes::KeptTimes(const ModelPair& pair, const bench::RoundTimesSpec& spec)
    : about_(times_context(pair, spec)) {
  Json key = about_;
  key["contexts"] = spec.contexts;
  key["largest_tree"] = spec.largest_tree;
  file_ = io::cache_file(fmt::format("tree-times-{}.json", sha256_hex(key.dump()).substr(0, 16)));
}

std::optional<speculate::TimingTable> KeptTimes::read(cli::Context& cx) const {
  if (!std::filesystem::exists(file_)) return {};
  cx.verbose(fmt::format("times of rounds from {}", file_.string()));
  return speculate::read_timing(file_);
}

void KeptTimes::write(cli::Context& cx, const speculate::TimingTable& table) const {
  if (io::keep(file_, speculate::timing_json(table, about_)))
    cx.verbose(fmt::format("kept as {}", file_.string()));
}

Json TreePlan::json() const {
  if (!predicted) return {};
  return {{"nodes", predicted->size},
          {"levels", predicted->levels},
          {"expected_tokens", predicted->expected},
          {"ms_per_token", predicted->cost.ms_per_token},
          {"plain_ms_per_token", plain_ms},
          {"speedup", plain_ms / predicted->cost.ms_per_token}};
}

TreePlan plan_tree(cli::Context& cx, const DraftTreeSection& section,
                   const std::optional<speculate::TokenTree>& given,
                   const speculate::TimingTable& times, const bench::RoundTimesSpec& timed,
                   int context) {
  TreePlan plan;
  const speculate::AcceptanceVector vector = speculate::read_acceptance(section.accept);
  const char* method = timed.sampler.rule.temperature > 0 ? "sequoia" : "topk-greedy";
  if (vector.method != method)
    cx.warn(fmt::format("{}: measured for '{}', these rounds verify by '{}'",
                        section.accept.string(), vector.method, method));
  const speculate::TimeBucket& bucket =
      section.timing.empty() ? times.buckets.front() : times.bucket(context, "tree.timing");
  plan.plain_ms = bucket.target.at(1);
  if (given) {
    plan.tree = *given;
    plan.predicted =
        speculate::price_tree(*given, vector, bucket, times.overhead_ms, times.skip_deepest);
    return plan;
  }
  const int nodes = timed.largest_tree;
  const int levels = std::min(section.max_levels.value_or(nodes), nodes);
  const speculate::TreeTable table(vector, {.max_size = nodes, .max_levels = levels});
  std::vector<int> sizes = bench::timed_sizes(nodes);
  sizes.erase(sizes.begin());  // a lone root is no speculation
  const speculate::TreeChoice choice = speculate::choose_tree(
      table, vector, sizes, levels, bucket, times.overhead_ms, times.skip_deepest);
  plan.predicted = choice.best;
  plan.tree = table.tree(choice.best.size, choice.best.levels);
  cx.note(
      fmt::format("tree     {} nodes on {} levels ({}), {:.2f} tokens a round expected, {:.3f} ms "
                  "a token against {:.3f} without",
                  choice.best.size, choice.best.levels, fmt::join(plan.tree.widths(), " "),
                  choice.best.expected, choice.best.cost.ms_per_token, plan.plain_ms));
  return plan;
}

}  // namespace tandem::tools
