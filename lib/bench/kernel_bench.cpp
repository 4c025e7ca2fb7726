#include "bench/kernel_bench.h"

#include "base/convert.h"

namespace tandem::bench {
KernelResult run_kernel_case(const KernelCase& c, const MeasureRules& rules,
                             const Ceilings& ceilings, const Interrupted& interrupted) {
  const PreparedCase prepared = c.prepare();
  prepared.run();
  if (const std::string difference = prepared.mismatch(); !difference.empty())
    throw Error::make(ErrorKind::numeric,
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

Record kernel_record(const KernelCase& c, const Ceilings& ceilings) {
  Record record("kernel-bench", &ceilings);
  record.group("workload") = {{"family", c.family},
                              {"kernel", c.name},
                              {"shape", c.shape},
                              {"dtype", dtype_name(c.dtype)},
                              {"cold", c.rotates ? "rotated copies" : "L2 flushed"}};
  return record;
}

Record kernel_record(const KernelCase& c, const KernelResult& r, const Ceilings& ceilings) {
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

io::Table kernel_table() {
  using io::Align;
  return io::Table({{"kernel", Align::left},
                    {"shape", Align::left},
                    {"type", Align::left},
                    {"ms"},
                    {"sd %"},
                    {"GB/s"},
                    {"% read"},
                    {"GFLOP/s"},
                    {"% GEMM"},
                    {"baseline", Align::left}});
}

std::vector<std::string> kernel_row(const KernelCase& c, const KernelResult& r) {
  const Summary s = summarize(r.samples.ms);
  const bool computes = c.work.flops > 0;
  return {
      c.name,
      c.shape,
      dtype_name(c.dtype),
      fmt::format("{:.4g}", s.p50),
      fmt::format("{:.1f}{}", 100 * s.stddev / s.mean,
                  steadiness(r.samples.ms).is_steady() ? "" : " (not steady)"),
      fmt::format("{:.1f}", r.roofline.achieved_gbps),
      read_share_cell(r.roofline),
      computes ? fmt::format("{:.0f}", r.roofline.achieved_gflops) : "",
      computes ? percent(r.roofline.frac_of_matmul) : "",
      r.baseline ? fmt::format("{} % of {}", percent(1 / r.baseline->ratio), c.baseline_name) : ""};
}

std::vector<std::string> failed_kernel_row(const KernelCase& c) {
  return {c.name, c.shape, dtype_name(c.dtype),         "", "", "", "",
          "",     "",      "differs from its reference"};
}

Record limits_record(const Ceilings& c) {
  Record record("kernel-bench", &c);
  record.group("workload") = {{"family", "limits"}};
  record.group("limits") = {{"mem_read_gbps", c.mem_read_gbps},
                            {"mem_rows_gbps", c.mem_rows_gbps},
                            {"code_gscores", c.code_gscores},
                            {"f32_gflops", c.f32_gflops},
                            {"gemm_f32_gflops", c.gemm_f32_gflops},
                            {"spread", c.spread},
                            {"waited", c.waited},
                            {"kept", c.doubt.empty()}};
  if (c.gemm_bf16_gflops > 0) record.group("limits")["gemm_bf16_gflops"] = c.gemm_bf16_gflops;
  if (!c.doubt.empty()) record.warn(doubt_text(c));
  return record;
}

io::Table limits_table() {
  using io::Align;
  return io::Table({{"threads"},
                    {"ISA", Align::left},
                    {"read GB/s"},
                    {"rows GB/s"},
                    {"codes G/s"},
                    {"f32 GFLOP/s"},
                    {"GEMM f32"},
                    {"GEMM bf16"},
                    {"spread %"},
                    {"waited %"},
                    {"kept", Align::left}});
}

std::vector<std::string> limits_row(const Ceilings& c) {
  return {fmt::format("{}", c.threads),
          isa_name(c.isa),
          fmt::format("{:.1f}", c.mem_read_gbps),
          fmt::format("{:.1f}", c.mem_rows_gbps),
          fmt::format("{:.3g}", c.code_gscores),
          fmt::format("{:.0f}", c.f32_gflops),
          fmt::format("{:.0f}", c.gemm_f32_gflops),
          c.gemm_bf16_gflops > 0 ? fmt::format("{:.0f}", c.gemm_bf16_gflops) : "",
          fmt::format("{:.1f}", 100 * c.spread),
          fmt::format("{:.1f}", 100 * c.waited),
          c.doubt.empty() ? "yes" : "no: " + c.doubt};
}

std::string describe(const Ceilings& c) {
  std::string text = fmt::format(
      "{} threads, {}: memory read {:.1f} GB/s, f32 multiply-add {:.0f} GFLOP/s, oneDNN "
      "f32 {:.0f} GFLOP/s",
      c.threads, isa_name(c.isa), c.mem_read_gbps, c.f32_gflops, c.gemm_f32_gflops);
  if (c.gemm_bf16_gflops > 0) text += fmt::format(", bf16 {:.0f} GFLOP/s", c.gemm_bf16_gflops);
  return text;
}

}  // namespace tandem::bench
