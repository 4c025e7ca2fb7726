#include "bench/kernel_bench.h"

#include "base/convert.h"

namespace tandem::bench {
KernelResult run_kernel_case(const KernelCase& c, const MeasureRules& rules,
                             const machine::Ceilings& ceilings, const Interrupted& interrupted) {
  const PreparedCase prepared = c.prepare();
  prepared.run();
  if (const std::string difference = prepared.mismatch(); !difference.empty())
    throw make_error(ErrorKind::numeric,
                     fmt::format("{} {} ({})", c.name, c.shape, isa_name(isa_in_use())), "{}",
                     difference)
        .hint("this is a bug or a broken CPU: compare with TANDEM_ISA=scalar");
  CacheFlusher flusher;
  const Body before = c.rotates ? Body{} : Body([&] { flusher.flush(); });
  const Body run = [&] {
    poll(interrupted);
    prepared.run();
  };
  KernelResult r;
  if (prepared.baseline) {
    r.baseline = compare(run, prepared.baseline, rules, before);
    r.samples = r.baseline->a;
  } else {
    r.samples = measure(run, rules, before);
  }
  r.roofline = roofline(c.work, median(r.samples.ms), ceilings, c.dtype);
  return r;
}

Record kernel_record(const KernelCase& c, const machine::Ceilings& ceilings) {
  Record record("kernel-bench", &ceilings);
  record.group("workload") = {{"family", c.family},
                              {"device", "cpu"},
                              {"kernel", c.name},
                              {"shape", c.shape},
                              {"dtype", dtype_name(c.dtype)},
                              {"cold", c.rotates ? "rotated copies" : "L2 flushed"}};
  return record;
}

Record kernel_record(const KernelCase& c, const KernelResult& r,
                     const machine::Ceilings& ceilings) {
  Record record = kernel_record(c, ceilings);
  record.set_timing("step", r.samples);
  record.set_steady("step", r.samples);
  record.set_roofline(c.work, r.roofline);
  record.set_memory("cpu", "planned_peak", c.memory_bytes);
  if (r.baseline) {
    record.set_timing("baseline_step", r.baseline->b);
    // Speed of this kernel as a share of the baseline's: inverse of the ratio of times.
    record.group("baseline") = {{"name", c.baseline_name},
                                {"ratio", 1 / r.baseline->ratio},
                                {"ci95_low", 1 / r.baseline->ci95.high},
                                {"ci95_high", 1 / r.baseline->ci95.low},
                                {"pairs", r.baseline->pairs()}};
  }
  return record;
}

RecordView kernel_view() {
  using io::Align;
  return {.tools = {"kernel-bench"},
          .takes = [](const Json& r) { return at(r, "/workload/family") != "limits"; },
          .columns = {{"kernel", Align::left},
                      {"shape", Align::left},
                      {"type", Align::left},
                      {"ms"},
                      {"sd %"},
                      {"GB/s"},
                      {"% read"},
                      {"GFLOP/s"},
                      {"% GEMM"},
                      {"baseline", Align::left}},
          .row = kernel_row};
}

std::vector<std::string> kernel_row(const Json& r) {
  const Json &w = at(r, "/workload"), &roof = at(r, "/roofline"), &t = main_timing(r),
             &flops = at(roof, "/achieved_tflops"), &of_gemm = at(roof, "/frac_of_matmul"),
             &ratio = at(r, "/baseline/ratio");
  std::vector<std::string> cells = {cell(at(w, "/kernel")), cell(at(w, "/shape")),
                                    cell(at(w, "/dtype"))};
  cells.resize(10);
  if (!failure_of(r).empty()) cells.back() = "differs from its reference";
  if (t.is_null()) return cells;
  cells[3] = cell(at(t, "/p50"), "{:.4g}");
  cells[4] = fmt::format("{:.1f}{}", 100 * t["stddev"].get<double>() / t["mean"].get<double>(),
                         at(r, "/steady") == false ? " (not steady)" : "");
  cells[5] = cell(at(roof, "/achieved_gbps"), "{:.1f}");
  cells[6] = read_share_cell(roof);
  if (flops.is_number()) cells[7] = fmt::format("{:.0f}", 1e3 * flops.get<double>());
  if (of_gemm.is_number()) cells[8] = percent(of_gemm);
  if (ratio.is_number())
    cells[9] = fmt::format("{} % of {}", percent(ratio), cell(at(r, "/baseline/name")));
  return cells;
}

Record limits_record(const machine::Ceilings& c) {
  Record record("kernel-bench", &c);
  record.group("workload") = {{"family", "limits"}, {"device", "cpu"}};
  record.group("limits") = {{"mem_read_gbps", c.mem_read_gbps},
                            {"mem_rows_gbps", c.mem_rows_gbps},
                            {"code_gscores", c.code_gscores},
                            {"f32_gflops", c.f32_gflops},
                            {"gemm_f32_gflops", c.gemm_f32_gflops},
                            {"spread", c.spread},
                            {"waited", c.waited},
                            {"kept", c.doubt.empty()}};
  if (c.gemm_bf16_gflops > 0) record.group("limits")["gemm_bf16_gflops"] = c.gemm_bf16_gflops;
  if (!c.doubt.empty()) {
    record.group("limits")["why_not_kept"] = c.doubt;
    record.warn(machine::doubt_text(c));
  }
  return record;
}

RecordView limits_view() {
  using io::Align;
  return {.tools = {"kernel-bench"},
          .takes = [](const Json& r) { return at(r, "/workload/family") == "limits"; },
          .columns = {{"threads"},
                      {"ISA", Align::left},
                      {"read GB/s"},
                      {"rows GB/s"},
                      {"codes G/s"},
                      {"f32 GFLOP/s"},
                      {"GEMM f32"},
                      {"GEMM bf16"},
                      {"spread %"},
                      {"waited %"},
                      {"kept", Align::left}},
          .row = limits_row};
}

std::vector<std::string> limits_row(const Json& r) {
  const Json& limits = at(r, "/limits");
  const auto number = [&](const char* name, const char* form) {
    return cell(at(limits, name), form);
  };
  const auto percents = [&](const char* name) {
    const Json& share = at(limits, name);
    return share.is_number() ? fmt::format("{:.1f}", 100 * share.get<double>()) : "";
  };
  return {cell(at(r, "/host/threads_used")),
          cell(at(r, "/cpu_isa")),
          number("/mem_read_gbps", "{:.1f}"),
          number("/mem_rows_gbps", "{:.1f}"),
          number("/code_gscores", "{:.3g}"),
          number("/f32_gflops", "{:.0f}"),
          number("/gemm_f32_gflops", "{:.0f}"),
          number("/gemm_bf16_gflops", "{:.0f}"),
          percents("/spread"),
          percents("/waited"),
          at(limits, "/kept") == true ? "yes" : "no: " + cell(at(limits, "/why_not_kept"))};
}

std::string describe(const machine::Ceilings& c) {
  std::string text = fmt::format(
      "{} threads, {}: memory read {:.1f} GB/s, f32 multiply-add {:.0f} GFLOP/s, oneDNN "
      "f32 {:.0f} GFLOP/s",
      c.threads, isa_name(c.isa), c.mem_read_gbps, c.f32_gflops, c.gemm_f32_gflops);
  if (c.gemm_bf16_gflops > 0) text += fmt::format(", bf16 {:.0f} GFLOP/s", c.gemm_bf16_gflops);
  return text;
}

}  // namespace tandem::bench
