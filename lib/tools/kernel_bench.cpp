#include "tools/kernel_bench.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/parallel.h"
#include "cli/threads.h"
#include "decode/fit/placement.h"
#include "recipe/fields_of.h"
#include "tensor/memory_plan.h"
#include "tools/results/bench_results.h"

namespace tandem::tools {
namespace {

bench::KernelCases chosen_cases(const bench::KernelShapes& shapes) {
  bench::KernelCases all;
  for (const std::string_view family : bench::kernel_families()) {
    const auto& wanted = shapes.families;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), family) == wanted.end())
      continue;
    bench::KernelCases cases = bench::kernel_cases(family, shapes);
    std::move(cases.begin(), cases.end(), std::back_inserter(all));
  }
  if (shapes.cases.empty()) return all;
  const auto is_named = [](std::string_view name) {
    return [name](const bench::KernelCase& c) { return c.name == name; };
  };
  for (const std::string& name : shapes.cases)
    if (std::ranges::none_of(all, is_named(name)))
      throw recipe_error("bench.cases", "no kernel family has a case '{}'", name)
          .hint("kernel-bench --dry-run lists them");
  std::erase_if(all, [&](const bench::KernelCase& c) {
    return std::ranges::find(shapes.cases, c.name) == shapes.cases.end();
  });
  return all;
}

machine::Ceilings measure_machine(cli::Context& cx) {
  const cli::Progress progress(cx.terminal, "measuring the limits of this machine", 0, "");
  return machine::measure_ceilings(max_threads(), cli::is_interrupted);
}

/// All cases of one point; false if a kernel differs from its reference.
bool run_point(cli::Context& cx, const cli::Point<KernelBenchRecipe>& point,
               BenchResults& results) {
  const KernelBenchRecipe& recipe = point.recipe;
  cli::use_threads(recipe.run.threads);
  const machine::Ceilings ceilings = measure_machine(cx);
  cx.note(bench::describe(ceilings));
  if (const std::string busy = machine::busy_text(ceilings); !busy.empty())
    cx.warn("other work ran while these limits were measured: " + busy);
  // Flushing a cache takes longer than many a kernel: 1000 runs are enough for any quantile.
  const bench::MeasureRules rules{.min_seconds = recipe.bench.min_time, .max_runs = 1000};
  const bench::KernelCases cases = chosen_cases(recipe.bench);
  cli::Progress progress(cx.terminal, "kernels", static_cast<double>(cases.size()), "cases");
  bool correct = true;
  for (size_t i = 0; i < cases.size() && !cli::is_interrupted(); ++i) {
    const bench::KernelCase& c = cases[i];
    try {
      const bench::KernelResult result =
          bench::run_kernel_case(c, rules, ceilings, cli::is_interrupted);
      results.add(named(bench::kernel_record(c, result, ceilings), point));
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) break;
      if (e.kind() != ErrorKind::numeric) throw;
      correct = false;
      results.add_failure(named(bench::kernel_record(c, ceilings), point), e);
    }
    progress.update(static_cast<double>(i + 1));
  }
  return correct;
}

}  // namespace

KernelBench::KernelBench(cli::Context& cx, const std::vector<cli::Point<Recipe>>& points)
    : cx_(cx), points_(points) {
  for (const auto& point : points)
    if (point.recipe.run.device.starts_with("cuda"))
      throw Error(ErrorKind::device, "run.device",
                  "expected cpu: kernel-bench measures only kernels of the CPU")
          .hint(
              "use --device cpu; for a GPU, run bench_gpu_attention and the other benchmarks of "
              "the GPU bundle");
  const auto chooses = [](const auto& point) {
    return !point.recipe.bench.families.empty() || !point.recipe.bench.cases.empty();
  };
  if (cx.is_set("all") && std::ranges::any_of(points, chooses))
    throw usage_error("--all", "cannot be combined with a recipe or flag that names kernels")
        .hint("leave out --all, or bench.families and bench.cases");
}

int KernelBench::print_plan() {
  if (cx_.is_set("limits")) {
    cx_.out.line(
        "measures this machine's limits: about one second per thread count, about 150 MiB");
    return 0;
  }
  io::Table table({{"kernel", io::Align::left}, {"shape", io::Align::left}, {"memory"}});
  for (const auto& point : points_)
    for (const bench::KernelCase& c : chosen_cases(point.recipe.bench))
      table.add_row({c.name, c.shape, format_bytes(c.memory_bytes)});
  cx_.out.write(table.render(bench::table_format(cx_.format())));
  return 0;
}

int KernelBench::measure_limits() {
  std::set<int> counts = {1};
  for (const auto& point : points_) {
    cli::use_threads(point.recipe.run.threads);
    counts.insert(max_threads());
  }
  BenchResults results(cx_, points_.front().recipe.output.path, {bench::limits_view()});
  for (const int n : counts) {  // ascending: more threads are held against fewer
    cli::use_threads(n);
    const machine::Ceilings c = machine::renewed_ceilings(
        n, io::cache_file(machine::kCeilingsFile),
        [](int threads) { return machine::measure_ceilings(threads, cli::is_interrupted); });
    results.add(named(bench::limits_record(c), points_.front()));
  }
  return results.finish();
}

int KernelBench::print_from(cli::Context& cx, const std::filesystem::path& records) {
  return print_records_of(cx, records, {bench::kernel_view(), bench::limits_view()});
}

int KernelBench::run() {
  if (cx_.is_set("limits")) return measure_limits();
  BenchResults results(cx_, points_.front().recipe.output.path, {bench::kernel_view()});
  bool correct = true;
  for (const auto& point : points_) correct = run_point(cx_, point, results) && correct;
  const int status = results.finish();
  return correct ? status : exit_status(ErrorKind::numeric);
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(tandem::tools::KernelBenchRecipe&);
