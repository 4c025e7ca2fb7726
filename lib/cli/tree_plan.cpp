#include "cli/tree_plan.h"

#include <fmt/ranges.h>

#include <bit>
#include <filesystem>

#include "base/cpu_features.h"
#include "base/parallel.h"
#include "base/sha256.h"
#include "bench/hardware.h"
#include "io/atomic_file.h"
#include "io/cache_dir.h"
#include "ops/linear.h"
#include "tensor/cuda.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

Json described(const ModelPair::Engines& engines, const bench::RoundTimesSpec& spec) {
  const decode::Engine& target = *engines.target;
  const Device device = target.spec().device;
  const bool on_gpu = device.kind == Device::Kind::cuda;
  const ops::SampleRule& rule = spec.sampler.rule;
  return {
      {"target", target.files().name},
      {"draft", engines.draft->files().name},
      {"device", on_gpu ? cuda::device_info(device.index).name : bench::read_host_info().cpu_model},
      {"threads", max_threads()},
      {"isa", isa_name(isa_in_use())},
      {"compute", dtype_name(ops::weight_dtype(target.spec().compute, device))},
      {"weight_bytes", {target.weight_bytes(), engines.draft->weight_bytes()}},
      {"layers_streamed", target.spec().n_streamed},
      {"batch", spec.batch},
      {"temperature", rule.temperature},
      {"top_k", rule.top_k},
      {"top_p", rule.top_p},
      {"min_p", rule.min_p},
      {"repetition_penalty", rule.repetition_penalty}};
}

/// Where the times of this description are kept.
std::filesystem::path kept_file(const ModelPair::Engines& engines,
                                const bench::RoundTimesSpec& spec, Json about) {
  about["fingerprints"] = {engines.target->files().fingerprint, engines.draft->files().fingerprint};
  about["contexts"] = spec.contexts;
  about["largest_tree"] = spec.largest_tree;
  return io::default_cache_dir() /
         fmt::format("tree-times-{}.json", sha256_hex(about.dump()).substr(0, 16));
}

}  // namespace

std::pair<spec::TimingTable, Json> measured_times(Context& cx, const ModelPair::Engines& engines,
                                                  const bench::RoundTimesSpec& spec) {
  Progress progress(cx.terminal, "time rounds", 1, "");
  spec::TimingTable table =
      bench::measure_rounds(*engines.target, *engines.draft, spec, [&](double share) {
        progress.update(share);
        return interrupted() == 0;
      });
  return {std::move(table), described(engines, spec)};
}

spec::TimingTable kept_times(Context& cx, const ModelPair::Engines& engines,
                             const bench::RoundTimesSpec& spec) {
  const std::filesystem::path file = kept_file(engines, spec, described(engines, spec));
  if (std::filesystem::exists(file)) {
    cx.verbose(fmt::format("times of rounds from {}", file.string()));
    return spec::read_timing(file);
  }
  const Stopwatch watch;
  const auto [table, about] = measured_times(cx, engines, spec);
  cx.note(fmt::format("timed rounds in {:.1f} s", watch.seconds()));
  try {
    std::filesystem::create_directories(file.parent_path());
    io::AtomicFile out(file);
    out.write(spec::timing_json(table, about));
    out.commit();
    cx.verbose(fmt::format("kept as {}", file.string()));
  } catch (const std::exception&) {
    // Read-only home: measured again next time.
  }
  return table;
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

TreePlan plan_tree(Context& cx, const SequoiaRecipe& recipe, const spec::TokenTree& given,
                   const ModelPair::Engines& engines, const decode::SamplerSpec& sampler, int batch,
                   int context) {
  TreePlan plan;
  plan.tree = given;
  const DraftTreeSection& section = recipe.tree;
  if (section.accept.empty()) return plan;
  const spec::AcceptanceVector vector = spec::read_acceptance(section.accept);
  const char* method = sampler.rule.temperature > 0 ? "sequoia" : "topk-greedy";
  if (vector.method != method)
    cx.warn(fmt::format("{}: measured for '{}', these rounds verify by '{}'",
                        section.accept.string(), vector.method, method));
  bench::RoundTimesSpec timed;
  // A power of two, so that texts of other lengths find the times kept.
  timed.contexts = {static_cast<int>(std::bit_floor(static_cast<unsigned>(context)))};
  timed.largest_tree = most_nodes(section, batch);
  timed.batch = batch;
  timed.sampler = sampler;
  const spec::TimingTable times =
      section.timing.empty() ? kept_times(cx, engines, timed) : spec::read_timing(section.timing);
  const spec::TimeBucket& bucket =
      section.timing.empty() ? times.buckets.front() : times.bucket(context, "tree.timing");
  plan.plain_ms = bucket.target.at(1);
  if (!section.path.automatic) {
    plan.predicted = spec::price_tree(given, vector, bucket, times.overhead_ms, times.skip_deepest);
    return plan;
  }
  const int nodes = timed.largest_tree;
  const int levels = std::min(section.max_levels.value_or(nodes), nodes);
  const spec::TreeTable table(vector, {.max_size = nodes, .max_levels = levels});
  std::vector<int> sizes = bench::timed_sizes(nodes);
  sizes.erase(sizes.begin());  // a lone root is no speculation
  const spec::TreeChoice choice = spec::choose_tree(table, vector, sizes, levels, bucket,
                                                    times.overhead_ms, times.skip_deepest);
  plan.predicted = choice.best;
  plan.tree = table.tree(choice.best.size, choice.best.levels);
  cx.note(
      fmt::format("tree     {} nodes on {} levels ({}), {:.2f} tokens a round expected, {:.3f} ms "
                  "a token against {:.3f} without",
                  choice.best.size, choice.best.levels, fmt::join(plan.tree.widths(), " "),
                  choice.best.expected, choice.best.cost.ms_per_token, plan.plain_ms));
  return plan;
}

}  // namespace tandem::cli
