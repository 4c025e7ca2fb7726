#include <doctest/doctest.h>

#include <numeric>
#include <string>

#include "base/clock.h"
#include "base/parallel.h"
#include "bench/hardware.h"
#include "bench/harness.h"
#include "bench/kernel_bench.h"
#include "bench/roofline.h"
#include "io/file.h"
#include "io/json.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::bench;

namespace {

void spin_ms(double ms) {
  const Stopwatch watch;
  while (watch.seconds() < 1e-3 * ms) {
  }
}

}  // namespace

TEST_SUITE("bench/harness") {
  TEST_CASE("at least the asked runs and seconds, warm-up not counted") {
    int calls = 0;
    MeasureRules rules{.max_warmup = 3, .warmup_tolerance = 0, .min_runs = 4, .min_seconds = 0};
    const Samples few = measure(
        [&] {
          ++calls;
          spin_ms(1);
        },
        rules);
    CHECK(few.warmup == 3);
    CHECK(few.ms.size() == 4);
    CHECK(calls == 7);
    for (const double ms : few.ms) CHECK(ms >= 1.0);
    rules.min_seconds = 0.05;
    const Samples more = measure([] { spin_ms(1); }, rules);
    CHECK(std::accumulate(more.ms.begin(), more.ms.end(), 0.0) >= 50);
    rules.max_runs = 6;
    CHECK(measure([] { spin_ms(1); }, rules).ms.size() == 6);
  }

  TEST_CASE("samples that are not steady are added to until they are, or time is up") {
    const MeasureRules rules{
        .max_warmup = 1, .min_runs = 10, .min_seconds = 0, .max_seconds = 1, .min_sample_ms = 0};
    // Times are agreed upon, and so are those of this test.
    const auto times = [&](const std::function<double(int i)>& of) {
      MeasureRules with = rules;
      int i = -1;  // a warm-up comes first
      with.agree = [&](double) { return of(i++); };
      return measure([] {}, with).ms.size();
    };
    CHECK(times([](int) { return 2.0; }) == 10);
    const size_t more = times([](int i) { return i < 5 ? 9.0 : 2.0; });
    CHECK(more >= 50);  // of which 5 are a tenth
    CHECK(more < 260);  // of which they are a deviation of half the mean at 200
    const size_t most = times([](int i) { return i % 2 == 0 ? 9.0 : 2.0; });
    CHECK(most >= 180);  // 1 s of 5.5 ms
    CHECK(most <= 184);
  }

  TEST_CASE("warm-up ends when the median settles") {
    MeasureRules rules{.max_warmup = 5, .warmup_tolerance = 1e9, .min_runs = 1, .min_seconds = 0};
    CHECK(measure([] { spin_ms(0.1); }, rules).warmup == 2);
  }

  TEST_CASE("short bodies are repeated, unless each run needs preparation") {
    int calls = 0, prepared = 0;
    const MeasureRules rules{.max_warmup = 5,
                             .warmup_tolerance = 0,
                             .min_runs = 3,
                             .min_seconds = 0,
                             .min_sample_ms = 1};
    const Samples s = measure(
        [&] {
          ++calls;
          spin_ms(0.01);
        },
        rules);
    CHECK(s.runs_per_sample > 1);
    CHECK(calls == 5 + 3 * s.runs_per_sample);
    for (const double ms : s.ms) CHECK(ms >= 0.01);
    calls = 0;
    const Samples single = measure([&] { ++calls; }, rules, [&] { ++prepared; });
    CHECK(single.runs_per_sample == 1);
    CHECK(calls == 8);
    CHECK(prepared == 8);
  }

  TEST_CASE("compared variants alternate and the ratio has its interval") {
    std::string order;
    const MeasureRules rules{.max_warmup = 1, .min_runs = 15, .min_seconds = 0, .min_sample_ms = 0};
    const Comparison c = compare(
        [&] {
          order += 'a';
          spin_ms(0.6);
        },
        [&] {
          order += 'b';
          spin_ms(0.3);
        },
        rules);
    CHECK(order.substr(0, 8) == "abababab");
    CHECK(c.pairs() == 15);
    CHECK(c.ratio > 1.4);  // 2, but other processes may interrupt either
    CHECK(c.ratio < 2.8);
    CHECK(c.ci95.low <= c.ratio);
    CHECK(c.ratio <= c.ci95.high);
  }

  TEST_CASE("flushing twice is harmless") {
    CacheFlusher flusher;
    flusher.flush();
    flusher.flush();
  }
}

TEST_SUITE("bench/roofline") {
  TEST_CASE("shares of the ceilings and what binds") {
    const Ceilings c{.threads = 2,
                     .mem_read_gbps = 20,
                     .f32_gflops = 100,
                     .gemm_f32_gflops = 200,
                     .gemm_bf16_gflops = 800};
    const Roofline stream = roofline({.bytes = 1e7, .flops = 1e6}, 1.0, c, DType::f32);
    CHECK(stream.achieved_gbps == doctest::Approx(10));
    CHECK(stream.frac_of_copy == doctest::Approx(0.5));
    CHECK(stream.achieved_gflops == doctest::Approx(1));
    CHECK(stream.bound == Bound::memory);
    const Roofline gemm = roofline({.bytes = 1e6, .flops = 4e8}, 1.0, c, DType::bf16);
    CHECK(gemm.frac_of_matmul == doctest::Approx(0.5));
    CHECK(gemm.bound == Bound::compute);
    CHECK(roofline({.bytes = 0, .flops = 1e8}, 1.0, c, DType::f32).frac_of_matmul ==
          doctest::Approx(0.5));

    const Ceilings gpu{.mem_read_gbps = 4000, .copy_in_gbps = 50, .gemm_bf16_gflops = 8e5};
    const Roofline streamed =
        roofline({.bytes = 2e9, .flops = 1e9, .host_bytes = 1e9}, 25.0, gpu, DType::bf16);
    CHECK(streamed.copy_in_gbps == doctest::Approx(40));
    CHECK(streamed.frac_of_copy_in == doctest::Approx(0.8));
    CHECK(streamed.frac_of_copy == doctest::Approx(0.02));
    CHECK(streamed.bound == Bound::host);
  }

  TEST_CASE("ceilings are measured once and then read back, until a run has seen more") {
    const test::TemporaryFolder folder;
    const std::filesystem::path file = folder / "ceilings.json";
    CHECK(!known_ceilings(1, file));
    const Ceilings first = cached_ceilings(1, {}, file);
    CHECK(first.mem_read_gbps > 0.1);
    CHECK(first.mem_rows_gbps > 0.1);
    // Reading on is no slower, but on a machine that does other things meanwhile.
    CHECK(first.mem_rows_gbps < 1.5 * first.mem_read_gbps);
    CHECK(first.f32_gflops > 0.1);
    CHECK(first.gemm_f32_gflops > 0.1);
    CHECK((first.gemm_bf16_gflops > 0) == (isa_in_use() >= Isa::avx512_bf16));
    const Ceilings second = cached_ceilings(1, {}, file);
    CHECK(second.mem_read_gbps == first.mem_read_gbps);
    CHECK(second.mem_rows_gbps == first.mem_rows_gbps);
    CHECK(second.gemm_f32_gflops == first.gemm_f32_gflops);
    CHECK(known_ceilings(1, file)->mem_read_gbps == first.mem_read_gbps);
    CHECK(!known_ceilings(2, file));
    io::Json kept = io::parse_json(io::read_file(file), "ceilings.json");
    CHECK(kept.contains("boot_id"));
    // What a clock that went back has left is no rate.
    io::Json spoilt = kept;
    for (io::Json& entry : spoilt)
      if (entry.is_object()) entry["f32_gflops"] = -6.7e-7;
    folder.write("ceilings.json", spoilt.dump());
    CHECK(!known_ceilings(1, file));
    constexpr double kBusy = 0.01;  // as if nearly all time had been others'
    for (io::Json& entry : kept)
      if (entry.is_object()) entry["mem_read_gbps"] = kBusy;
    folder.write("ceilings.json", kept.dump());
    CHECK(cached_ceilings(1, {}, file).mem_read_gbps == kBusy);
    CHECK(cached_ceilings(1, {.read_gbps = kBusy}, file).mem_read_gbps == kBusy);
    const Ceilings again = cached_ceilings(1, {.read_gbps = 2 * kBusy}, file);
    CHECK(again.mem_read_gbps > 0.1);
    CHECK(known_ceilings(1, file)->mem_read_gbps == again.mem_read_gbps);
    for (io::Json& entry : kept)
      if (entry.is_object())
        for (const char* rate : {"f32_gflops", "gemm_f32_gflops", "gemm_bf16_gflops"})
          entry[rate] = kBusy;
    folder.write("ceilings.json", kept.dump());
    CHECK(cached_ceilings(1, {.gflops = kBusy}, file).f32_gflops == kBusy);
    CHECK(cached_ceilings(1, {.gflops = 2 * kBusy}, file).f32_gflops > 0.1);
  }
}

TEST_SUITE("bench/kernel") {
  TEST_CASE("rates beyond the memory's are no share of it") {
    const Ceilings c{.threads = 1, .mem_read_gbps = 20, .f32_gflops = 100};
    KernelCase kernel;
    kernel.work.bytes = 1e7;
    for (const auto& [ms, cell] :
         {std::pair<double, std::string>{1.0, "50"}, {0.5, "100"}, {0.4, ""}}) {
      KernelResult r;
      r.samples.ms = {ms, ms};
      r.roofline = roofline(kernel.work, ms, c, DType::f32);
      CHECK(kernel_row(kernel, r).at(6) == cell);
    }
    KernelResult any;
    any.samples.ms = {1};
    CHECK(failed_kernel_row(kernel).size() == kernel_row(kernel, any).size());
  }

  TEST_CASE("a wrong kernel and an interruption are told apart") {
    KernelCase kernel;
    const auto kind = [&](const char* difference, bool stop) {
      kernel.prepare = [=] { return PreparedCase{[] {}, [=] { return std::string(difference); }}; };
      try {
        run_kernel_case(kernel, {.min_seconds = 60}, {}, [=] { return stop; });
      } catch (const Error& e) {
        return e.kind();
      }
      return ErrorKind::internal;
    };
    CHECK(kind("element 3 differs", false) == ErrorKind::numeric);
    CHECK(kind("", true) == ErrorKind::interrupted);
  }
}
