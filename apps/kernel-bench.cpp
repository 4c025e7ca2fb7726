// kernel-bench: checks every kernel against its reference, then times it.
#include <algorithm>
#include <iterator>

#include "base/parallel.h"
#include "bench/kernel_bench.h"
#include "cli/main_wrapper.h"
#include "recipe/fields_of.h"
#include "tensor/memory_plan.h"
#include "tools/results/bench_results.h"

namespace {

using namespace tandem;

struct KernelBenchRecipe {
  recipe::Run run;
  bench::KernelShapes bench;
  recipe::Output output;

  template <class V>
  void fields(V& v) {
    v("run", run, "device and threads");
    v("bench", bench, "kernels and their shapes");
    v("output", output, "where the result goes");
  }
};

const cli::ToolInfo kInfo{
    .name = "kernel-bench",
    .purpose =
        "Check kernels against their references, then time them against this machine's limits",
    .kind = "kernel-bench",
    .examples = {"kernel-bench --family attention --family linear",
                 "kernel-bench --family norm -s bench.rows=[1,64,4096] -s bench.dim=4096",
                 "kernel-bench --sweep run.threads=1,2 --format jsonl -o kernels.jsonl",
                 "TANDEM_ISA=avx2 kernel-bench --family sample"},
    .flags = {{.names = "--family",
               .value = "NAME",
               .text = "embed, norm, linear, rope, attention, silu, sample, loading, lsh, "
                       "signature, attend, tree; repeatable",
               .key = "bench.families"}},
    .schema = recipe::schema_of<KernelBenchRecipe>,
    .formats = {"text", "md", "csv", "jsonl"},
    .sweeps = true,
    .appends = true,
    .needs_arguments = false};

bench::KernelCases chosen_cases(const bench::KernelShapes& shapes) {
  bench::KernelCases all;
  for (const std::string_view family : bench::kernel_families()) {
    const auto& wanted = shapes.families;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), family) == wanted.end())
      continue;
    bench::KernelCases cases = bench::kernel_cases(family, shapes);
    std::move(cases.begin(), cases.end(), std::back_inserter(all));
  }
  return all;
}

int print_plan(cli::Context& cx, const std::vector<cli::Point<KernelBenchRecipe>>& points) {
  io::Table table({{"kernel", io::Align::left}, {"shape", io::Align::left}, {"memory"}});
  for (const auto& point : points)
    for (const bench::KernelCase& c : chosen_cases(point.recipe.bench))
      table.add_row({c.name, c.shape, format_bytes(c.memory_bytes)});
  cx.out.write(table.render(tools::table_format(cx.format())));
  return 0;
}

bool stop_asked() { return cli::interrupted() != 0; }

bench::Ceilings measure_machine(cli::Context& cx) {
  const cli::Progress progress(cx.terminal, "measuring the limits of this machine", 0, "");
  return bench::measure_ceilings(max_threads(), stop_asked);
}

/// All cases of one point; false if a kernel differs from its reference.
bool run_point(cli::Context& cx, const cli::Point<KernelBenchRecipe>& point,
               tools::BenchResults& results) {
  const KernelBenchRecipe& recipe = point.recipe;
  set_threads(recipe.run.threads > 0 ? recipe.run.threads : usable_cores());
  const bench::Ceilings ceilings = measure_machine(cx);
  cx.note(bench::describe(ceilings));
  // Flushing a cache takes longer than many a kernel: 1000 runs are enough for any quantile.
  const bench::MeasureRules rules{.min_seconds = recipe.bench.min_time, .max_runs = 1000};
  const bench::KernelCases cases = chosen_cases(recipe.bench);
  cli::Progress progress(cx.terminal, "kernels", static_cast<double>(cases.size()), "cases");
  bool correct = true;
  for (size_t i = 0; i < cases.size() && cli::interrupted() == 0; ++i) {
    const bench::KernelCase& c = cases[i];
    const auto named = [&](bench::Record record) {
      record.group("point") = point.id;
      record.group("recipe") = *point.record;
      return record;
    };
    try {
      const bench::KernelResult result = bench::run_kernel_case(c, rules, ceilings, stop_asked);
      results.add(named(bench::kernel_record(c, result, ceilings)), bench::kernel_row(c, result));
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) break;
      if (e.kind() != ErrorKind::numeric) throw;
      correct = false;
      results.add_failure(named(bench::kernel_record(c, ceilings)), bench::failed_kernel_row(c), e);
    }
    progress.update(static_cast<double>(i + 1));
  }
  return correct;
}

}  // namespace

int main(int argc, char** argv) {
  return cli::main_wrapper(kInfo, argc, argv, [](cli::Context& cx) {
    const auto points = cx.load_points<KernelBenchRecipe>();
    for (const auto& point : points)
      if (point.recipe.run.device.starts_with("cuda"))
        throw Error(ErrorKind::device, "run.device", "kernel-bench measures the kernels of the CPU")
            .hint(
                "use --device cpu; bench_gpu_attention and its kin of the GPU bundle measure a "
                "GPU's");
    if (cx.dry_run()) return print_plan(cx, points);
    tools::BenchResults results(cx, points.front().recipe.output.path, bench::kernel_table());
    bool correct = true;
    for (const auto& point : points) correct = run_point(cx, point, results) && correct;
    const int status = results.finish();
    return correct ? status : exit_status(ErrorKind::numeric);
  });
}
