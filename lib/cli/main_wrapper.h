#pragma once
#include <functional>
#include <type_traits>
#include <vector>

#include "cli/context.h"

namespace tandem::cli {

/// Ends a tool early with a status, as after --print-recipe. Not an std::exception, so that only
/// main_wrapper catches it.
struct EarlyExit {
  int status;
};

/// The frame of every tool: parses the command line, serves help and version, installs the signal
/// handlers, reads TANDEM_ISA and TANDEM_GPU_ISA, runs `body`, and turns every exception into one
/// message and the exit status of its kind. Returns what main() should.
int main_wrapper(const ToolInfo& info, int argc, char** argv,
                 const std::function<int(Context&)>& body);

/// A tool that has `static int print_from(Context&, const std::filesystem::path& records)`: --from.
template <class Body>
concept PrintsRecords = requires(Context& cx, const std::filesystem::path& records) {
  Body::print_from(cx, records);
};

/// main() of a tool. Body::Recipe is what it reads; info.schema follows from that. The constructor,
/// Body(Context&, const Point<Recipe>&), reads headers and inputs and sizes the run; a tool that
/// sweeps takes const std::vector<Point<Recipe>>&. int print_plan() serves --dry-run, int run()
/// does the work; both return the exit status, and a plan that does not fit is an error of kind
/// memory once it is out.
template <class Body>
int run_tool(ToolInfo info, int argc, char** argv) {
  using Points = std::vector<Point<typename Body::Recipe>>;
  info.schema = recipe::schema_of<typename Body::Recipe>;
  info.prints_records = PrintsRecords<Body>;
  return main_wrapper(info, argc, argv, [](Context& cx) {
    if constexpr (PrintsRecords<Body>)
      if (const auto records = cx.records_to_print()) return Body::print_from(cx, *records);
    const Points points = cx.load_points<typename Body::Recipe>();
    const auto go = [&](Body body) { return cx.dry_run() ? body.print_plan() : body.run(); };
    if constexpr (std::is_constructible_v<Body, Context&, const Points&>)
      return go(Body(cx, points));
    else
      return go(Body(cx, points.front()));
  });
}

}  // namespace tandem::cli
