#include "machine/hosted_plan.h"

#include <algorithm>
#include <array>

#include "recipe/fields.h"

namespace tandem::machine {
namespace {

using recipe::Attend;
using recipe::IndexPlace;

/// Of bytes at GB/s.
double ms(double bytes, double gbps) { return bytes / gbps * 1e-6; }

/// The GPU's part of a step.
double gpu_ms(const kv::StepTraffic& t, const StepWeights& weights, const HostedRates& r,
              int n_micro_batches) {
  const double bytes =
      n_micro_batches * weights.bytes + t.gpu() - t.gpu_index + t.gpu_index / r.gpu_index_share;
  return ms(bytes, r.gpu_gbps) + n_micro_batches * t.choosing_layers * r.choose_us * 1e-3;
}

/// The CPU's, but for what the link takes from it.
double cpu_ms(const kv::StepTraffic& t, const HostedRates& r) {
  const double scores_ms = r.code_gscores > 0 ? t.cpu_scores / r.code_gscores * 1e-6 : 0;
  return ms(t.cpu_rows, r.dram_rows_gbps) + ms(t.cpu_stream, r.dram_gbps) +
         std::max(ms(t.cpu_codes, r.dram_gbps), scores_ms);
}

struct Way {
  Attend attend;
  IndexPlace index;
};

/// The ways of a kind that the recipe leaves open.
std::vector<Way> ways_of(const recipe::Cache& cache) {
  const kv::Needs needs = kv::needs_of(cache);
  std::vector<Way> ways;
  if (needs.reads_all) {  // without an index
    ways = {{Attend::cpu, IndexPlace::automatic}, {Attend::gpu, IndexPlace::automatic}};
  } else if (needs.attends_at_index) {
    ways = {{Attend::cpu, IndexPlace::host}, {Attend::gpu, IndexPlace::device}};
    // The index is for the CPU unless the recipe asks for the other.
    if (cache.attend == Attend::automatic && cache.index == IndexPlace::automatic) ways.pop_back();
  } else {
    ways = {{Attend::cpu, IndexPlace::host},
            {Attend::cpu, IndexPlace::device},
            {Attend::gpu, IndexPlace::device},
            {Attend::both, IndexPlace::device}};
  }
  std::erase_if(ways, [&](const Way& w) {
    return (cache.is_eight_bit() && w.attend != Attend::cpu) ||
           (cache.attend != Attend::automatic && cache.attend != w.attend) ||
           (!needs.reads_all && cache.index != IndexPlace::automatic && cache.index != w.index);
  });
  return ways;
}

HostedOption option_of(const HostedRun& run, const Way& way, const HostedRates& rates,
                       const std::function<HostedRoom(const recipe::Cache&)>& room_of) {
  HostedOption option{.cache = run.cache};
  recipe::Cache& cache = option.cache;
  cache.attend = way.attend;
  cache.index = way.index;
  const auto traffic = [&](const recipe::Cache& c) {
    return kv::step_traffic(c, run.geometry, run.length, run.batch);
  };
  const HostedRoom room = room_of(cache);
  const StepWeights weights = option.weights = {run.weight_bytes, room.streamed_bytes};
  if (way.attend == Attend::both && cache.cpu_share == 0) {
    recipe::Cache alone = cache;
    alone.attend = Attend::cpu;
    cache.cpu_share = balanced_share(traffic(alone), weights, rates, run.batch);
  }
  option.fits = room.fits;
  option.traffic = traffic(cache);
  option.time = hosted_time(option.traffic, weights, rates, way.attend, run.batch);
  return option;
}

}  // namespace

int micro_batches(Attend attend, int batch) { return attend != Attend::gpu && batch > 1 ? 2 : 1; }

double HostedPlan::gpu_bytes() const {
  return micro_batches(chosen().cache.attend, batch) * chosen().weights.bytes +
         chosen().traffic.gpu();
}

double HostedPlan::link_bytes() const {
  return chosen().traffic.link() + chosen().weights.streamed;
}

HostedTime hosted_time(const kv::StepTraffic& traffic, const StepWeights& weights,
                       const HostedRates& rates, Attend attend, int batch) {
  const bool serves = attend != Attend::gpu && traffic.cpu() > 0;
  HostedTime t;
  t.gpu_ms = gpu_ms(traffic, weights, rates, serves ? micro_batches(attend, batch) : 1);
  if (serves)
    t.cpu_ms = cpu_ms(traffic, rates) +
               rates.dram_shared *
                   ms(traffic.link_rows + traffic.link_stream + weights.streamed, rates.dram_gbps);
  t.link_ms = ms(traffic.link_rows, rates.link_row_share * rates.link_gbps) +
              ms(traffic.link_small, rates.link_gbps);
  t.copy_ms = ms(traffic.link_stream + weights.streamed, rates.link_gbps);
  t.turn_ms = serves ? traffic.hosted_layers * rates.turn_us * 1e-3 : 0;
  const double served = t.cpu_ms + t.turn_ms;
  if (!serves)
    t.step_ms = t.gpu_ms + t.link_ms;
  else if (batch > 1)
    t.step_ms = std::max(t.gpu_ms + t.link_ms, served);
  else if (attend == Attend::both)
    t.step_ms = t.gpu_ms + std::max(t.link_ms, served);
  else
    t.step_ms = t.gpu_ms + t.link_ms + served;
  t.step_ms = std::max(t.step_ms, t.copy_ms);
  return t;
}

double balanced_share(const kv::StepTraffic& all, const StepWeights& weights,
                      const HostedRates& rates, int batch) {
  const double by_cpu = ms(all.cpu_rows, rates.dram_rows_gbps);
  // Of a row that the link brings: its time, less what the CPU loses.
  const double by_link = ms(all.cpu_rows, rates.link_row_share * rates.link_gbps) -
                         rates.dram_shared * ms(all.cpu_rows, rates.dram_gbps);
  if (by_cpu + by_link <= 0) return 1;
  // share * by_cpu + turns = (1 - share) * by_link, and what only one of them waits for.
  double ahead = by_link - all.hosted_layers * rates.turn_us * 1e-3;
  if (batch > 1) ahead += gpu_ms(all, weights, rates, micro_batches(Attend::both, batch));
  // A share of 0 would ask for a choice again.
  return std::clamp(ahead / (by_cpu + by_link), 0.01, 1.0);
}

HostedPlan plan_hosted(const HostedRun& run, const HostedRates& rates,
                       const std::function<HostedRoom(const recipe::Cache&)>& room_of) {
  HostedPlan plan{.length = run.length, .batch = run.batch, .rates = rates, .options = {}};
  for (const Way& way : ways_of(run.cache))
    plan.options.push_back(option_of(run, way, rates, room_of));
  if (plan.options.empty())
    throw recipe_error(
        "cache.attend",
        "is {} with cache.index {}, which is not supported for kind {} with an offloaded KV cache",
        recipe::yaml_text(run.cache.attend), recipe::yaml_text(run.cache.index),
        recipe::yaml_text(run.cache.kind))
        .hint("set both to auto");
  std::ranges::stable_sort(plan.options, [](const HostedOption& a, const HostedOption& b) {
    return a.fits != b.fits ? a.fits : a.time.step_ms < b.time.step_ms;
  });
  return plan;
}

}  // namespace tandem::machine
