// pig-bench: prefill and decode speed of a model over cache policy, batch and context.
#include <fstream>

#include "base/clock.h"
#include "base/parallel.h"
#include "bench/break_even.h"
#include "bench/model_report.h"
#include "cli/bench_results.h"
#include "cli/main_wrapper.h"
#include "cli/load_engine.h"
#include "cli/plan_text.h"

namespace {

using namespace tandem;
using bench::ModelPhase;

struct BenchOutput {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path, "records, one JSON line each; what --resume continues; empty or - = none");
  }
};

struct BenchRecipe {
  recipe::Model model;
  recipe::Run run;
  recipe::Cache cache;
  bench::ModelBench bench;
  BenchOutput output;

  BenchRecipe() {
    run.context = {1024};
    run.batch = 1;
  }
  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "device, threads, seed, sizes");
    v("cache", cache, "what attention reads");
    v("bench", bench, "what is measured, and how long");
    v("output", output, "where records go");
  }
  void check(recipe::Problems& p) const {
    if (!model.state.empty()) p.field("model.state", "pig-bench continues no saved state");
  }
};

const cli::ToolInfo kInfo{
    .name = "pig-bench",
    .purpose = "Measure prefill and decode speed over cache policy, batch and context",
    .kind = "bench",
    .examples =
        {"pig-bench -m tiny-16m --phase decode --sweep run.batch=1,4 --format md",
         "pig-bench -r pig/compare -o out.jsonl --resume",
         "pig-bench -m tiny-16m --sweep cache.kind=full,streaming --sweep run.context=1Ki-8Ki*2",
         "pig-bench -r pig/bench-llama-3.2-1b --dry-run",
         "pig-bench -m synthetic:llama-3.2-1b --phase linear --sweep run.prefill_chunk=512,2048"},
    .flags = {{.names = "--phase",
               .value = "NAME",
               .text = "prefill, decode, linear or attention; repeatable",
               .key = "bench.phases"}},
    .schema = recipe::schema_of<BenchRecipe>,
    .formats = {"text", "md", "csv", "jsonl"},
    .sweeps = true,
    .appends = true,
    .resumes = true};

using Point = cli::Point<BenchRecipe>;

decode::ModelFiles open_model(const BenchRecipe& r) {
  return decode::open_model(r.model.path.value, static_cast<uint64_t>(r.run.seed));
}

bench::ModelCase case_of(const BenchRecipe& r, const model::ModelConfig& config) {
  return bench::model_case(r.bench, r.run, r.cache, r.model.compute, config);
}

void use_threads(const BenchRecipe& r) {
  set_threads(r.run.threads > 0 ? r.run.threads : usable_cores());
}

/// Makes the system count this process's peak of memory anew; false where it cannot.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

void add_failure(cli::BenchResults& results, const Point& point, ModelPhase phase,
                 const Error& error) {
  bench::Record record(kInfo.name);
  record.group("point") = point.id;
  record.group("recipe") = point.record;
  record.group("workload")["phase"] = bench::phase_name(phase);
  const BenchRecipe& r = point.recipe;
  results.add_failure(
      record, bench::failed_row(r.model.path.value, r.run, r.cache, phase, error.what()), error);
}

/// The phases of one point, in their order; prefill and decode share an engine.
class PointRun {
 public:
  PointRun(cli::Context& cx, const Point& point, cli::BenchResults& results,
           std::vector<bench::DecodeTime>& decode_times)
      : cx_(cx), point_(point), results_(results), decode_times_(decode_times) {
    use_threads(point.recipe);
    const cli::Progress progress(cx.terminal, "measuring the limits of this machine", 0, "");
    ceilings_ = bench::cached_ceilings(max_threads());
    peak_is_own_ = reset_peak();
  }

  void run(ModelPhase phase) {
    decode::ModelFiles files = open_model(point_.recipe);
    const model::ModelConfig config = files.config;
    const bench::ModelCase c = case_of(point_.recipe, config);
    if (c.dtype != c.compute) cx_.note(cli::compute_note(c.compute));
    const bench::ModelIdentity identity = bench::identify(files, c.dtype);
    const bool whole = phase == ModelPhase::prefill || phase == ModelPhase::decode;
    if (!whole) engine_.reset();
    if (!whole || !engine_) {
      plan_ = bench::phase_plan(phase, c, files);
      cli::admit_plan(cx_, plan_, cli::host_limit(point_.recipe.run.host_memory_limit));
    }
    const auto interrupted = [] { return cli::interrupted() != 0; };
    if (whole && !engine_) {
      const Stopwatch watch;
      cli::LoadProgress progress(cx_, plan_);
      engine_ = std::make_unique<bench::EngineBench>(std::move(files), c, interrupted,
                                                     std::ref(progress));
      load_ms_ = 1e3 * watch.seconds();
    }
    if (phase == ModelPhase::prefill) report(c, identity, engine_->prefill());
    if (phase == ModelPhase::decode) report(c, identity, engine_->decode());
    if (phase == ModelPhase::linear) report(c, identity, bench::bench_linear(c, config, interrupted));
    if (phase == ModelPhase::attention)
      report(c, identity, bench::bench_attention(c, config, interrupted));
  }

 private:
  void report(const bench::ModelCase& c, const bench::ModelIdentity& identity,
              const bench::PhaseResult& result) {
    bench::Record record(kInfo.name, &ceilings_);
    record.group("point") = point_.id;
    record.group("recipe") = point_.record;
    bench::add_result(record, c, identity, result, ceilings_);
    if (engine_) record.set_timing("load", {.ms = {load_ms_}});
    const size_t peak = peak_resident_bytes();
    bench::add_memory(record, plan_, peak);
    if (!peak_is_own_) record.warn("memory.cpu.peak is that of the whole process, all points so far");
    results_.add(record, bench::model_row(c, identity, result, ceilings_, peak));
    peak_is_own_ = reset_peak();
    if (result.phase == ModelPhase::decode)
      decode_times_.push_back({identity.name, c.batch, bench::method_name(c.cache), c.context,
                               bench::median(result.samples.ms)});
  }

  cli::Context& cx_;
  const Point& point_;
  cli::BenchResults& results_;
  std::vector<bench::DecodeTime>& decode_times_;
  bench::Ceilings ceilings_;
  MemoryPlan plan_;
  std::unique_ptr<bench::EngineBench> engine_;
  double load_ms_ = 0;
  bool peak_is_own_ = false;
};

/// Runs what is missing of a point; a failure is a result too, except an interruption.
void run_point(cli::Context& cx, const Point& point, cli::BenchResults& results, cli::Progress& progress,
               double& n_done, std::vector<bench::DecodeTime>& decode_times) {
  PointRun run(cx, point, results, decode_times);
  for (const ModelPhase phase : point.recipe.bench.phases) {
    if (cli::interrupted() != 0) return;
    progress.update(n_done++);
    if (results.has({point.id, std::string(bench::phase_name(phase)), max_threads()})) continue;
    try {
      run.run(phase);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::interrupted) return;
      add_failure(results, point, phase, e);
    } catch (const std::bad_alloc&) {
      add_failure(results, point, phase, Error(ErrorKind::memory, "", "not enough memory"));
    }
  }
}

/// One line a point and phase: what it needs, and whether that fits.
int print_plan(cli::Context& cx, const std::vector<Point>& points) {
  io::Table table({{"point", io::Align::left}, {"model", io::Align::left}, {"context"}, {"batch"},
                   {"method", io::Align::left}, {"phase", io::Align::left}, {"planned peak"},
                   {"available"}, {"verdict", io::Align::left}});
  int status = 0;
  for (const Point& point : points) {
    const BenchRecipe& r = point.recipe;
    use_threads(r);
    const size_t limit = cli::host_limit(r.run.host_memory_limit);
    const decode::ModelFiles files = open_model(r);
    for (const ModelPhase phase : r.bench.phases) {
      std::vector<std::string> row = {point.id, files.name, std::to_string(r.run.context.value),
                                      std::to_string(r.run.batch), bench::method_name(r.cache),
                                      std::string(bench::phase_name(phase)), "",
                                      format_bytes(limit)};
      try {
        const size_t peak = bench::phase_plan(phase, case_of(r, files.config), files).peak({});
        row[6] = format_bytes(peak);
        row.push_back(peak <= limit ? "fits" : "does not fit");
        if (peak > limit) status = exit_status(ErrorKind::memory);
      } catch (const Error& e) {
        row.push_back(e.what());
        if (status == 0) status = exit_status(e.kind());
      }
      table.add_row(std::move(row));
    }
  }
  cx.out.write(table.render(cli::table_format(cx.format())));
  return status;
}

int run(cli::Context& cx) {
  const std::vector<Point> points = cx.load_points<BenchRecipe>();
  if (cx.dry_run()) return print_plan(cx, points);
  cli::BenchResults results(cx, points.front().recipe.output.path, bench::model_table());
  double n_phases = 0, n_done = 0;
  std::vector<bench::DecodeTime> decode_times;
  for (const Point& point : points) n_phases += static_cast<double>(point.recipe.bench.phases.size());
  {
    cli::Progress progress(cx.terminal, "bench", n_phases, "phases");
    for (const Point& point : points) {
      if (cli::interrupted() != 0) break;
      run_point(cx, point, results, progress, n_done, decode_times);
    }
  }
  const int status = results.finish();
  for (const std::string& line : bench::break_even(decode_times)) cx.note(line);
  return status;
}

}  // namespace

int main(int argc, char** argv) { return tandem::cli::main_wrapper(kInfo, argc, argv, run); }
