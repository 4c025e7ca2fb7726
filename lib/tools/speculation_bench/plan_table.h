#pragma once
#include <string>

#include "cli/context.h"
#include "io/table.h"
#include "tools/speculation_bench/bench_engines.h"

namespace tandem::tools {

/// What --dry-run prints of a sweep: a line a point, the room that it needs; of a single one in
/// detail.
class PlanTable {
 public:
  PlanTable(cli::Context& cx, size_t n_points);

  /// engines  of the point, sized
  /// refused  what the point leaves out, each with a comma before it
  void add(const cli::PointName& point, const BenchEngines& engines, const std::string& refused);
  void print();
  /// Whether all points fit.
  bool fits() const { return fits_; }

 private:
  cli::Context& cx_;
  bool is_single_, fits_ = true;
  io::Table table_;
  std::string detail_;
};

}  // namespace tandem::tools
