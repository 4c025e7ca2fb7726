#include "bench/model_report.h"

#include "bench/break_even.h"
#include "kv/policy.h"
#include "machine/hosted_report.h"
#include "machine/onednn_gemm.h"
#include "model/spec/roles.h"
#include "model/spec/weight_formats.h"
#include "model/spec/work.h"
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

bool is_whole_model(ModelPhase phase) {
  return phase == ModelPhase::prefill || phase == ModelPhase::decode;
}

/// What limits a phase: loading to a GPU the rate of copies to it.
machine::Ceilings ceilings_of(ModelPhase phase, machine::Ceilings c) {
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
std::string method_of(const ModelCase& c, ModelPhase phase) {
  if (phase == ModelPhase::load || phase == ModelPhase::switching) return "";
  if (phase == ModelPhase::linear) return fmt::format("{} rows", c.chunk);
  return phase == ModelPhase::attention ? "dense" : method_name(c.cache);
}

/// The subject of a measurement, and what it is compared with.
std::string subject(const Json& r, const std::string& phase) {
  const auto number = [&](const char* pointer) {
    const Json& value = at(r, pointer);
    return value.is_number() ? value.get<double>() : 0.0;
  };
  const double copy_in = number("/host/copy_in_gbps");
  if (phase == "load" && copy_in > 0)
    return fmt::format("limit: {:.1f} GB/s from pinned host memory", copy_in);
  if (const Json& adapters = at(r, "/workload/adapters"); adapters.is_object())
    return fmt::format("{} {} adapters, synthetic", cell(adapters["n"]), cell(adapters["kind"]));
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (at(r, "/attention/selected_keys_frac").is_number())
    add(fmt::format("reads {} % + {} % of the context",
                    percent(number("/attention/selected_keys_frac")),
                    percent(number("/attention/fixed_keys_frac"))));
  if (at(r, "/workload/kv") == "random") add("random KV");
  if (const double gbps = number("/roofline/achieved_copy_in_gbps"); gbps > 0)
    add(fmt::format("{:g} layers offloaded: {:.1f} GB/s, {} % of {:.1f}",
                    number("/workload/layers_streamed"), gbps,
                    percent(number("/roofline/frac_of_copy_in")), std::max(copy_in, gbps)));
  if (at(r, "/hosted/measured_over_predicted").is_number())
    add(fmt::format("predicted {:.4g} ms, measured {:.2f} of it", number("/hosted/step_ms"),
                    number("/hosted/measured_over_predicted")));
  if (!at(r, "/baseline").is_object()) return text;
  return fmt::format("{:.1f} % of {} ({:.1f} to {:.1f})", 100 * number("/baseline/ratio"),
                     cell(at(r, "/baseline/name")), 100 * number("/baseline/ci95_low"),
                     100 * number("/baseline/ci95_high"));
}

std::string note(const Json& r, const std::string& phase) {
  if (const std::string failure = failure_of(r); !failure.empty()) return "failed: " + failure;
  std::string text;
  if (at(r, "/steady") == false)
    for (const Json& warning : at(r, "/warnings"))
      if (const size_t said = cell(warning).find("not steady"); said != std::string::npos)
        text = cell(warning).substr(said);
  const std::string rest = subject(r, phase);
  return text + (text.empty() || rest.empty() ? "" : ", ") + rest;
}

/// Of samples that are not steady a mean and its deviation say nothing.
std::string speed_cell(const Json& r, const std::string& phase) {
  const Json& speed = at(r, "/throughput/" + phase + "_tok_s");
  const Json& t = main_timing(r);
  if (!speed.is_number() || t.is_null()) return "";
  const double mean = t["mean"], tok_s = speed;
  if (at(r, "/steady") == false)
    return fmt::format("{:.3g} at p50 (not steady)", tok_s * mean / t["p50"].get<double>());
  return fmt::format("{:.4g} +- {:.2g}", tok_s, tok_s * t["stddev"].get<double>() / mean);
}

}  // namespace

ModelIdentity identify(const decode::ModelFiles& files, DType dtype) {
  return {files.name,
          {{"name", files.name},
           {"arch", files.config.architecture},
           {"params", model::n_params(files.config)},
           {"weight_bytes", model::weight_bytes(files.config, dtype)},
           {"dtype", dtype_name(dtype)},
           {"weights", model::formats_text(files.config, dtype)},
           {"int8_activations", files.config.formats && files.config.formats->int8_inputs},
           {"fingerprint", files.fingerprint}}};
}

std::string method_name(const recipe::Cache& cache) {
  std::string name = kv::needs_of(cache).name_of_settings;
  if (!cache.is_hosted()) return name;
  name += " host";
  if (cache.attend != recipe::Attend::automatic) name += " " + recipe::yaml_text(cache.attend);
  return name;
}

void add_result(Record& record, const ModelCase& c, const ModelIdentity& model,
                const PhaseResult& r, const machine::Ceilings& ceilings) {
  record.group("model") = model.group;
  record.group("workload") = workload(c, r.phase);
  if (const std::string method = method_of(c, r.phase); !method.empty())
    record.group("workload")["method"] = method;
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
    record.group("hosted") = machine::hosted_json(*c.hosted);
    record.group("hosted")["measured_over_predicted"] = s.p50 / c.hosted->chosen().time.step_ms;
  }
  if (!r.host.ms.empty()) record.set_timing("host_work", r.host);
  if (!r.baseline) return;
  record.set_timing("baseline_step", r.baseline->b);
  // Our speed as a share of the library's: the inverse of the ratio of times.
  record.group("baseline") = {{"name", machine::OneDnnGemm::name(c.dtype)},
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

RecordView model_view() {
  using io::Align;
  return {.tools = bench_tools(),
          .takes = is_of_phase,
          .columns = {{"model", Align::left},
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
                      {"note", Align::left}},
          .row = model_row,
          .notes = [](const auto& records) { return break_even(decode_times(records)); }};
}

std::vector<std::string> model_row(const Json& r) {
  const std::string phase = cell(at(r, "/workload/phase"));
  const Json& roof = at(r, "/roofline");
  const Json& t = main_timing(r);
  const Json &peak = at(r, "/memory/cpu/peak"), &method = at(r, "/workload/method"),
             &name = at(r, "/model/name"), &rate = at(roof, "/achieved_tflops"),
             &of_gemm = at(roof, "/frac_of_matmul");
  const bool is_whole = phase == "prefill" || phase == "decode";
  return {cell(!name.is_null() ? name : at(r, "/recipe/effective/model/path")),
          is_whole || phase == "attention" ? cell(at(r, "/workload/prompt_tokens")) : "",
          is_whole ? cell(at(r, "/workload/batch")) : "",
          method.is_null() && is_whole ? cell(at(r, "/recipe/effective/cache/kind")) : cell(method),
          phase,
          speed_cell(r, phase),
          cell(at(t, "/p50"), "{:.4g}"),
          cell(at(t, "/p99"), "{:.4g}"),
          cell(at(roof, "/achieved_gbps"), "{:.1f}"),
          read_share_cell(roof),
          rate.is_number() ? fmt::format("{:.1f}", 1e3 * rate.get<double>()) : "",
          of_gemm.is_number() ? percent(of_gemm) : "",
          peak.is_number() ? fmt::format("{:.2f}", peak.get<double>() * 0x1p-30) : "",
          note(r, phase)};
}

}  // namespace tandem::bench
