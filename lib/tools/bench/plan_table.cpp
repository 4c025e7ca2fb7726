#include "tools/bench/plan_table.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/plan_text.h"
#include "decode/fit/memory_text.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {

PlanTable::PlanTable(cli::Context& cx, size_t n_points)
    : cx_(cx),
      is_single_(n_points == 1),
      table_({{"point", io::Align::left},
              {"context"},
              {"batch"},
              {"device", io::Align::left},
              {"planned peak"},
              {"available"},
              {"verdict", io::Align::left}}) {}

void PlanTable::refuse(const std::string& name, const Error& error) {
  refused_ += fmt::format(", {}: {}", name, error.what());
  refusal_ = exit_status(error.kind());
}

void PlanTable::add(const cli::PointName& point, const bench::BenchEngines& engines) {
  const MemoryPlan& plan = engines.plan();
  const decode::MemoryLimits limits = engines.limits();
  const bool fits = limits.fits(plan);
  fits_ = fits_ && fits;
  const decode::RankPlan ranks = engines.rank_plan();
  if (is_single_)
    detail_ = decode::gpu_line(limits) + ranks.lines() + decode::memory_lines(plan, limits) + "\n";
  nlohmann::ordered_json line = {{"event", "plan"},
                                 {"point", point.id},
                                 {"context_tokens", engines.sizes().context},
                                 {"batch", engines.sizes().batch}};
  if (!ranks.kinds.empty()) line["ranks"] = ranks.json();
  line.update(decode::memory_json(plan, limits));
  if (cx_.plans_as_json()) cx_.write_plan(line.dump());
  table_.add_row({point.id, std::to_string(engines.sizes().context),
                  std::to_string(engines.sizes().batch), decode::planned_device(limits),
                  format_bytes(plan.peak(engines.device())),
                  format_bytes(limits.on_gpu() ? limits.gpu_bytes : limits.host),
                  (fits ? "fits" : "does not fit") + std::exchange(refused_, {})});
}

int PlanTable::finish() {
  if (!cx_.plans_as_json()) {
    cx_.out.write(table_.render(bench::table_format(cx_.format())));
    cx_.out.write(detail_);
  }
  return fits_ ? refusal_ : exit_status(ErrorKind::memory);
}

}  // namespace tandem::tools
