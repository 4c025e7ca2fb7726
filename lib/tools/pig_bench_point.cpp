#include "tools/pig_bench_point.h"

#include "base/clock.h"
#include "base/parallel.h"
#include "bench/gpu_hardware.h"
#include "tools/engines/load_engine.h"

namespace tandem::tools {

using bench::ModelPhase;

decode::ModelFiles open_model(const BenchRecipe& r) {
  return decode::open_model(r.model.path.value, static_cast<uint64_t>(r.run.seed));
}

bench::ModelCase case_of(const BenchRecipe& r, const model::ModelConfig& config,
                         const cli::Placement& place) {
  bench::ModelCase c =
      bench::model_case(r.bench, r.run, r.cache, r.model.compute, config, place.device);
  c.plan_for = place.plan_for;
  return c;
}

int layers_to_stream(ModelPhase phase, const BenchRecipe& r, bench::ModelCase c,
                     const decode::ModelFiles& files) {
  return layers_to_stream(r.model.offload, files.config,
                          cli::memory_limits(r.run, {c.device, c.plan_for}), [&](int n) {
                            c.n_streamed = n;
                            return bench::phase_plan(phase, c, files);
                          });
}

void use_threads(const recipe::Run& run) {
  set_threads(run.threads > 0 ? run.threads : usable_cores());
}

BenchPoint::BenchPoint(cli::Context& cx, const cli::Point<BenchRecipe>& point,
                       BenchResults& results, std::vector<bench::DecodeTime>& decode_times)
    : cx_(cx), point_(point), results_(results), decode_times_(decode_times) {
  use_threads(point.recipe.run);
  const cli::Progress progress(cx.terminal, "measuring the limits of this machine", 0, "");
  const Device device = cli::choose_device(point.recipe.run, point.recipe.cache);
  ceilings_ = device.kind == Device::Kind::cuda ? bench::gpu_ceilings(device)
                                                : bench::cached_ceilings(max_threads());
  peak_is_own_ = reset_peak_resident();
}

void BenchPoint::run(ModelPhase phase) {
  decode::ModelFiles files = open_model(point_.recipe);
  const model::ModelConfig config = files.config;
  bench::ModelCase c =
      case_of(point_.recipe, config, {cli::choose_device(point_.recipe.run, point_.recipe.cache)});
  const bench::ModelIdentity identity = bench::identify(files, c.dtype);
  const bool whole = phase == ModelPhase::prefill || phase == ModelPhase::decode;
  if (!whole) engine_.reset();
  if (!whole || !engine_) {
    n_streamed_ = c.n_streamed = layers_to_stream(phase, point_.recipe, c, files);
    plan_ = bench::phase_plan(phase, c, files);
    admit_plan(cx_, plan_, cli::memory_limits(point_.recipe.run, {c.device}));
  }
  c.n_streamed = n_streamed_;  // of the engine, which may have been there before
  const auto is_interrupted = [] { return cli::interrupted() != 0; };
  if (whole && !engine_) {
    const Stopwatch watch;
    LoadProgress progress(cx_, plan_);
    engine_ = std::make_unique<bench::EngineBench>(std::move(files), c, is_interrupted,
                                                   std::ref(progress));
    load_ms_ = 1e3 * watch.seconds();
  }
  if (phase == ModelPhase::prefill) report(c, identity, engine_->prefill());
  if (phase == ModelPhase::decode) report(c, identity, engine_->decode());
  if (phase == ModelPhase::load) {
    LoadProgress progress(cx_, plan_);
    report(c, identity,
           bench::bench_load([&] { return open_model(point_.recipe); }, c, is_interrupted,
                             std::ref(progress)));
  }
  if (phase == ModelPhase::linear)
    report(c, identity, bench::bench_linear(c, config, is_interrupted));
  if (phase == ModelPhase::attention)
    report(c, identity, bench::bench_attention(c, config, is_interrupted));
}

void BenchPoint::report(const bench::ModelCase& c, const bench::ModelIdentity& identity,
                        const bench::PhaseResult& result) {
  if (c.device.kind == Device::Kind::cpu)  // unless they were measured on a busier machine
    ceilings_ = bench::cached_ceilings(
        max_threads(), {.gflops = result.work.flops / bench::median(result.samples.ms) * 1e-6});
  bench::Record record(cx_.info.name, &ceilings_);
  record.group("point") = point_.id;
  record.group("recipe") = *point_.record;
  bench::add_result(record, c, identity, result, ceilings_);
  if (engine_) record.set_timing("load", {.ms = {load_ms_}});
  const size_t peak = peak_resident_bytes();
  bench::add_memory(record, plan_, peak, c.device);
  if (!peak_is_own_) record.warn("memory.cpu.peak is that of the whole process, all points so far");
  results_.add(record, bench::model_row(c, identity, result, ceilings_, peak));
  peak_is_own_ = reset_peak_resident();
  if (result.phase == ModelPhase::decode)
    decode_times_.push_back({identity.name, c.batch, bench::method_name(c.cache), c.context,
                             bench::median(result.samples.ms)});
}

}  // namespace tandem::tools
