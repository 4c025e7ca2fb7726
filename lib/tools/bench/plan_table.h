#pragma once
#include <string>

#include "bench/speculation/bench_engines.h"
#include "cli/context.h"
#include "io/table.h"

namespace tandem::tools {

/// What --dry-run prints of a sweep: a line a point, the room that it needs; of a single one in
/// detail.
class PlanTable {
 public:
  PlanTable(cli::Context& cx, size_t n_points);

  /// The next point leaves out what has this name.
  void refuse(const std::string& name, const Error& error);
  /// engines  of the point, sized
  void add(const cli::PointName& point, const bench::BenchEngines& engines);
  /// Prints all points. The exit status: memory where one does not fit, else that of the last
  /// refusal, or 0.
  int finish();

 private:
  cli::Context& cx_;
  bool is_single_, fits_ = true;
  int refusal_ = 0;      // exit status
  std::string refused_;  // of the next point
  io::Table table_;
  std::string detail_;
};

}  // namespace tandem::tools
