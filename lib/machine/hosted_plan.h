#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kv/hosted/step_traffic.h"
#include "machine/hosted_rates.h"

// What a decode step takes whose keys of long texts lie in host memory, and who should attend them.
namespace tandem::machine {

/// Weights that a step reads.
struct StepWeights {
  double bytes = 0;     // from the GPU's memory
  double streamed = 0;  // of them, bytes that every forward copies from host memory
};

/// Parts that a step is cut into, of which one computes while the other's keys are attended: two
/// where the CPU serves several sequences.
int micro_batches(recipe::Attend attend, int batch);

/// Parts of a step, ms.
struct HostedTime {
  double gpu_ms = 0;   // products, keys on the GPU, choice there
  double cpu_ms = 0;   // the CPU's reads of keys and index, and its choice
  double link_ms = 0;  // keys that the GPU fetches; queries, lists and results
  double copy_ms = 0;  // layers of keys or weights that are copied ahead of their use
  double turn_ms = 0;  // turns between GPU and CPU: fixed, at each layer that the CPU serves
  double step_ms = 0;  // all of it, as it overlaps
};

/// The step that follows from rates. The GPU reads W bytes of weights in each of m micro-batches, K
/// bytes of keys and I of an index, by which it chooses in l layers; the CPU R bytes in rows and S
/// in order, and X bytes of codes for N scores; F bytes are fetched and exchanged over the link, C
/// copied ahead of their use; T = layers x turn:
///
///     gpu = (m W + K + I / gpu_index_share) / gpu rate + m l choose_us
///     link = F / link rate          copy = C / link rate     (rows of F at link_row_share of it)
///     cpu = R / rows rate + S / dram rate + max(X / dram rate, N / code rate)
///           + dram_shared (rows of F + C) / dram rate
///     attend gpu               max(gpu + link, copy)
///     one sequence:      cpu   max(gpu + link + cpu + T, copy)
///                        both  max(gpu + max(link, cpu + T), copy)
///     two and more:  cpu, both max(gpu + link, cpu + T, copy)
///
/// While the CPU attends, the link takes of the same memory, hence the last part of its time.
/// From two sequences on products of one micro-batch run while keys of the other are attended. A
/// layer that the CPU serves then costs one turn for both, since a wait of one is work of the
/// other.
HostedTime hosted_time(const kv::StepTraffic& traffic, const StepWeights& weights,
                       const HostedRates& rates, recipe::Attend attend, int batch);

/// The CPU's share of lists with which it and the link end together, by hosted_time.
/// all      traffic of a step whose lists the CPU attends alone
double balanced_share(const kv::StepTraffic& all, const StepWeights& weights,
                      const HostedRates& rates, int batch);

/// A run to plan: sequences at their longest.
struct HostedRun {
  recipe::Cache cache;
  kv::Geometry geometry;
  int length = 0;  // tokens of a sequence
  int batch = 1;
  double weight_bytes = 0;
};

/// One way to attend, and what a step then takes.
struct HostedOption {
  recipe::Cache cache;  // attend and index decided, and cpu_share with both
  StepWeights weights = {};
  kv::StepTraffic traffic = {};
  HostedTime time = {};
  bool fits = true;
};

/// Ways that the recipe leaves open, the chosen one first.
struct HostedPlan {
  int length = 0, batch = 1;
  HostedRates rates;
  std::vector<HostedOption> options;

  const HostedOption& chosen() const { return options.front(); }
  /// Bytes that a step moves over each of three: the GPU's memory, with weights as often as they
  /// are read; host memory, by the CPU; the link.
  double gpu_bytes() const;
  double dram_bytes() const { return chosen().traffic.cpu(); }
  double link_bytes() const;
};

/// Whether a run with these settings has the memory, and what streaming weights then costs.
struct HostedRoom {
  bool fits = true;
  double streamed_bytes = 0;
};

/// The fastest way that fits; where none does, the fastest.
/// room_of  of a cache whose attend and index are decided
/// errors   kind recipe when the settings do not fit the model
HostedPlan plan_hosted(const HostedRun& run, const HostedRates& rates,
                       const std::function<HostedRoom(const recipe::Cache&)>& room_of);

}  // namespace tandem::machine
