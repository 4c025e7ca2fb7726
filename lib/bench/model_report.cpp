#include "bench/model_report.h"

#include "bench/hosted_report.h"
#include "bench/onednn_gemm.h"
#include "model/weight_table.h"
#include "tensor/cuda.h"
#include "tensor/gpu_isa.h"

namespace tandem::bench {
namespace {

/// Tokens a second and their deviation, to first order in that of the times.
struct Speed {
  double mean = 0, stddev = 0;
};

Speed speed_of(const PhaseResult& r, const Summary& s) {
  const double mean = 1e3 * r.tokens / s.mean;
  return {mean, mean * s.stddev / s.mean};
}

/// Of samples that are not steady a mean and its deviation say nothing.
std::string speed_cell(const PhaseResult& r, const Summary& s) {
  if (!steadiness(r.samples.ms).is_steady())
    return fmt::format("{:.3g} at p50 (not steady)", 1e3 * r.tokens / s.p50);
  const Speed speed = speed_of(r, s);
  return fmt::format("{:.4g} +- {:.2g}", speed.mean, speed.stddev);
}

bool is_whole_model(ModelPhase phase) {
  return phase == ModelPhase::prefill || phase == ModelPhase::decode;
}

/// What limits a phase: loading to a GPU the rate of copies to it.
Ceilings ceilings_of(ModelPhase phase, Ceilings c) {
  if (phase == ModelPhase::load && c.copy_in_gbps > 0) c.mem_read_gbps = c.copy_in_gbps;
  return c;
}

const char* timing_name(ModelPhase phase) {
  if (phase == ModelPhase::prefill) return "prefill";
  if (phase == ModelPhase::load) return "load";
  if (phase == ModelPhase::switching) return "switch";
  return phase == ModelPhase::decode ? "decode_step" : "step";
}

Json workload(const ModelCase& c, ModelPhase phase) {
  Json w = {{"phase", phase_name(phase)}, {"seed", c.seed}, {"device", c.device.name()}};
  if (c.device.kind == Device::Kind::cuda) {
    w["gpu"] = cuda::device_info(c.device.index).name;
    w["gpu_isa"] = cuda::gpu_isa_name(cuda::gpu_of(c.device.index).isa);
  }
  if (phase == ModelPhase::linear) {
    w["rows"] = c.chunk;
    return w;
  }
  if (phase == ModelPhase::load) return w;
  if (c.n_ranks > 1) w["ranks"] = c.n_ranks;
  if (c.bench.adapters.n > 0) w["adapters"] = c.bench.adapters.json();
  if (phase == ModelPhase::switching) return w;
  if (c.savings.n_streamed > 0) w["layers_streamed"] = c.savings.n_streamed;
  if (c.savings.host_embedding) w["embedding"] = "host";
  if (c.savings.prompt_passes > 1) w["prompt_passes"] = c.savings.prompt_passes;
  w["batch"] = is_whole_model(phase) ? c.batch : 1;
  w["prompt_tokens"] = c.context;
  if (phase != ModelPhase::decode) {
    w["prefill_chunk"] = c.chunk;
    return w;
  }
  w["new_tokens"] = c.bench.new_tokens.value;
  w["context_tokens"] = c.context;
  w["kv"] = c.bench.random_kv ? "random" : "prefilled";
  w["sampling"] = "not included";
  return w;
}

/// Prefill attention is dense under every policy.
std::string method_cell(const ModelCase& c, ModelPhase phase) {
  if (phase == ModelPhase::load || phase == ModelPhase::switching) return "";
  if (phase == ModelPhase::linear) return fmt::format("{} rows", c.chunk);
  return phase == ModelPhase::attention ? "dense" : method_name(c.cache);
}

/// The subject of a measurement, and what it is compared with.
std::string subject(const ModelCase& c, const PhaseResult& r, const Ceilings& ceilings) {
  std::string text;
  if (r.phase == ModelPhase::load && ceilings.copy_in_gbps > 0)
    return fmt::format("limit: {:.1f} GB/s from pinned host memory", ceilings.copy_in_gbps);
  if (c.bench.adapters.n > 0 && (is_whole_model(r.phase) || r.phase == ModelPhase::switching))
    return c.bench.adapters.text() + " adapters, synthetic";
  if (r.keys)
    text = fmt::format("reads {} % + {} % of the keys", percent(r.keys->selected),
                       percent(r.keys->fixed));
  if (r.phase == ModelPhase::decode && c.bench.random_kv)
    text += text.empty() ? "random KV" : ", random KV";
  if (r.work.host_bytes > 0) {
    const Roofline roof = roofline(r.work, summarize(r.samples.ms).p50, ceilings, c.dtype);
    text +=
        fmt::format("{}{} layers streamed: {:.1f} GB/s, {} % of {:.1f}", text.empty() ? "" : ", ",
                    c.savings.n_streamed, roof.copy_in_gbps, percent(roof.frac_of_copy_in),
                    std::max(ceilings.copy_in_gbps, roof.copy_in_gbps));
  }
  if (r.phase == ModelPhase::decode && c.hosted) {
    const double predicted = c.hosted->chosen().time.step_ms;
    text += fmt::format("{}predicted {:.4g} ms, {:.2f} of it", text.empty() ? "" : ", ", predicted,
                        summarize(r.samples.ms).p50 / predicted);
  }
  if (!r.baseline) return text;
  return fmt::format("{:.1f} % of {} ({:.1f} to {:.1f})", 100 / r.baseline->ratio,
                     OneDnnGemm::name(c.dtype), 100 / r.baseline->ci95.high,
                     100 / r.baseline->ci95.low);
}

std::string note(const ModelCase& c, const PhaseResult& r, const Ceilings& ceilings) {
  const std::string text = subject(c, r, ceilings), warning = steadiness(r.samples.ms).text();
  return warning + (text.empty() || warning.empty() ? "" : ", ") + text;
}

}  // namespace

ModelIdentity identify(const decode::ModelFiles& files, DType dtype) {
  const int64_t params = model::n_params(files.config);
  return {files.name,
          {{"name", files.name},
           {"arch", model::arch_name(files.config.arch)},
           {"params", params},
           {"weight_bytes", params * static_cast<int64_t>(dtype_bytes(dtype))},
           {"dtype", dtype_name(dtype)},
           {"fingerprint", files.fingerprint}}};
}

namespace {

/// The method but for where its keys lie.
std::string reading_name(const recipe::Cache& cache) {
  using recipe::CacheKind;
  const std::string name = recipe::yaml_text(cache.kind);
  const recipe::Lsh& lsh = cache.lsh;
  const recipe::Hybrid& hybrid = cache.hybrid;
  switch (cache.kind) {
    case CacheKind::full:
      return name;
    case CacheKind::streaming:
      return name + fmt::format(" {}+{}{}", cache.sinks.value, cache.recent.value,
                                cache.reposition ? " repositioned" : "");
    case CacheKind::topk:
    case CacheKind::oracle_sampling:
      return name + " " + recipe::yaml_text(cache.topk.ratio);
    case CacheKind::quest:
      return name + fmt::format(" {} {}", cache.quest.page, recipe::yaml_text(cache.quest.ratio));
    case CacheKind::lsh:
      return name + fmt::format(" {}x{} {}", lsh.bits, lsh.tables, lsh.min_hits);
    case CacheKind::hybrid:
      return name +
             fmt::format(" {} {} {}", hybrid.bits, recipe::yaml_text(hybrid.exact),
                         recipe::yaml_text(hybrid.tail)) +
             (hybrid.tail == recipe::HybridTail::sampled
                  ? fmt::format(" {}", recipe::yaml_text(hybrid.sample))
                  : "") +
             (hybrid.group == recipe::HybridGroup::shared ? " shared" : "");
    case CacheKind::snapkv:
      return name + fmt::format(" {} of {}", cache.snapkv.budget.value, cache.snapkv.window);
    case CacheKind::verified:
      return name + fmt::format(" {}", cache.verified.budget.value);
    case CacheKind::retrieval:
      return name + fmt::format(" {} by {}", cache.retrieval.budget.value, cache.retrieval.chunk);
  }
  return name;
}

}  // namespace

std::string method_name(const recipe::Cache& cache) {
  std::string name = reading_name(cache);
  if (!cache.is_hosted()) return name;
  name += " host";
  if (cache.attend != recipe::Attend::automatic) name += " " + recipe::yaml_text(cache.attend);
  return name;
}

void add_result(Record& record, const ModelCase& c, const ModelIdentity& model,
                const PhaseResult& r, const Ceilings& ceilings) {
  record.group("model") = model.group;
  record.group("workload") = workload(c, r.phase);
  record.set_timing(timing_name(r.phase), r.samples);
  record.set_steady(timing_name(r.phase), r.samples);
  const Summary s = summarize(r.samples.ms);
  if (r.phase == ModelPhase::prefill)
    record.group("throughput") = {{"prefill_tok_s", speed_of(r, s).mean}, {"scope", "model_only"}};
  if (r.phase == ModelPhase::decode)
    record.group("throughput") = {{"decode_tok_s", speed_of(r, s).mean},
                                  {"decode_tok_s_user", speed_of(r, s).mean / c.batch},
                                  {"scope", "model_only"}};
  record.set_roofline(r.work, roofline(r.work, s.p50, ceilings_of(r.phase, ceilings), c.dtype));
  if (r.linear_share > 0) record.group("roofline")["linear_flops_frac"] = r.linear_share;
  if (r.keys) {
    record.group("attention") = {{"selected_keys_frac", r.keys->selected},
                                 {"fixed_keys_frac", r.keys->fixed}};
    if (r.keys->error >= 0) record.group("attention")["weights_error_bound"] = r.keys->error;
  }
  if (r.phase == ModelPhase::decode && c.hosted) {
    record.group("hosted") = hosted_json(*c.hosted);
    record.group("hosted")["measured_over_predicted"] = s.p50 / c.hosted->chosen().time.step_ms;
  }
  if (!r.host.ms.empty()) record.set_timing("host_work", r.host);
  if (!r.baseline) return;
  record.set_timing("baseline_step", r.baseline->b);
  // Our speed as a share of the library's: the inverse of the ratio of times.
  record.group("baseline") = {{"name", OneDnnGemm::name(c.dtype)},
                              {"ratio", 1 / r.baseline->ratio},
                              {"ci95_low", 1 / r.baseline->ci95.high},
                              {"ci95_high", 1 / r.baseline->ci95.low},
                              {"pairs", r.baseline->pairs()}};
}

void add_memory(Record& record, const MemoryPlan& plan, size_t peak_bytes, Device device) {
  const auto add = [&](Device d, const std::string& name) {
    for (const std::string& group : plan.groups())
      record.set_memory(name, group, plan.group_bytes(group, d));
    record.set_memory(name, "planned_peak", plan.peak(d));
  };
  add({}, "cpu");
  record.set_memory("cpu", "peak", peak_bytes);
  if (device.kind != Device::Kind::cuda) return;
  add(device, device.name());
  const cuda::DeviceInfo gpu = cuda::device_info(device.index);
  record.set_memory(device.name(), "in_use", gpu.total_bytes - gpu.free_bytes);
}

io::Table model_table() {
  using io::Align;
  return io::Table({{"model", Align::left},
                    {"context"},
                    {"batch"},
                    {"method", Align::left},
                    {"phase", Align::left},
                    {"tok/s +- sd"},
                    {"ms p50"},
                    {"ms p99"},
                    {"GB/s"},
                    {"% of read"},
                    {"GFLOP/s"},
                    {"% of GEMM"},
                    {"peak GiB"},
                    {"note", Align::left}});
}

std::vector<std::string> model_row(const ModelCase& c, const ModelIdentity& model,
                                   const PhaseResult& r, const Ceilings& ceilings,
                                   size_t peak_bytes) {
  const Summary s = summarize(r.samples.ms);
  const Roofline roof = roofline(r.work, s.p50, ceilings_of(r.phase, ceilings), c.dtype);
  const bool sized = is_whole_model(r.phase) || r.phase == ModelPhase::attention;
  const bool moves = r.work.bytes > 0, computes = r.work.flops > 0;
  return {model.name,
          sized ? fmt::format("{}", c.context) : "",
          is_whole_model(r.phase) ? fmt::format("{}", c.batch) : "",
          method_cell(c, r.phase),
          std::string(phase_name(r.phase)),
          r.tokens > 0 ? speed_cell(r, s) : "",
          fmt::format("{:.4g}", s.p50),
          fmt::format("{:.4g}", s.p99),
          moves ? fmt::format("{:.1f}", roof.achieved_gbps) : "",
          moves ? read_share_cell(roof) : "",
          computes ? fmt::format("{:.1f}", roof.achieved_gflops) : "",
          computes ? percent(roof.frac_of_matmul) : "",
          peak_bytes > 0 ? fmt::format("{:.2f}", static_cast<double>(peak_bytes) * 0x1p-30) : "",
          note(c, r, ceilings)};
}

std::vector<std::string> failed_row(const std::string& model, const recipe::Run& run,
                                    const recipe::Cache& cache, ModelPhase phase,
                                    const std::string& reason) {
  std::vector<std::string> row(14);
  row[0] = model;
  row[1] = run.context > 0 ? fmt::format("{}", run.context.value) : "";
  row[2] = run.batch > 0 ? fmt::format("{}", run.batch) : "";
  row[3] = method_name(cache);
  row[4] = phase_name(phase);
  row[13] = "failed: " + reason;
  return row;
}

}  // namespace tandem::bench
