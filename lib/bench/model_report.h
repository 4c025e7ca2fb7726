#pragma once
#include <string>
#include <vector>

#include "bench/model_bench.h"
#include "bench/record.h"
#include "bench/record_view.h"

namespace tandem::bench {

/// What records and tables say of a model; read before an engine takes the files over.
struct ModelIdentity {
  std::string name;
  Json group;  // group `model` of a record
};
ModelIdentity identify(const decode::ModelFiles& files, DType dtype);

/// "full", "streaming 4+64"; of keys in host memory "full host cpu".
std::string method_name(const recipe::Cache& cache);

/// Fills model, workload, timing, throughput, roofline and baseline.
void add_result(Record& record, const ModelCase& c, const ModelIdentity& model,
                const PhaseResult& result, const machine::Ceilings& ceilings);
/// memory.cpu: the plan's groups and its peak, and the peak that the system counted (0 = unknown);
/// of a GPU the plan's, and what the driver says is in use now: contexts, code, graphs and other
/// processes included.
void add_memory(Record& record, const MemoryPlan& plan, size_t peak_bytes, Device device = {});

/// The table of a model's phases. Failed records show the sizes as they were asked for, and the
/// reason.
RecordView model_view();
std::vector<std::string> model_row(const Json& record);

}  // namespace tandem::bench
