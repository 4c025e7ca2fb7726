#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <string>

#include "base/clock.h"
#include "base/parallel.h"
#include "bench/harness.h"
#include "bench/kernel_bench.h"
#include "bench/roofline.h"
#include "io/file.h"
#include "io/json.h"
#include "machine/hardware.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::bench;
using namespace tandem::machine;

namespace {

void spin_ms(double ms) {
  const Stopwatch watch;
  while (watch.seconds() < 1e-3 * ms) {
  }
}

/// Measurements that are made up, and a file for them.
struct Measured {
  static Ceilings usual() {
    return {.mem_read_gbps = 20,
            .mem_rows_gbps = 15,
            .code_gscores = 1,
            .f32_gflops = 100,
            .gemm_f32_gflops = 200,
            .gemm_bf16_gflops = 400};
  }
  MeasureCeilings measure() {
    return [this](int threads) {
      ++calls;
      Ceilings c = next;
      c.threads = threads;
      c.isa = isa_in_use();
      return c;
    };
  }
  Ceilings cached(int threads, const SeenRates& seen = {}) {
    return cached_ceilings(threads, seen, file, measure());
  }

  test::TemporaryFolder folder;
  std::filesystem::path file = folder / "ceilings.json";
  Ceilings next = usual();
  int calls = 0;
};

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

  TEST_CASE("no share of a limit is above 1") {
    const Ceilings c{
        .mem_read_gbps = 20, .copy_in_gbps = 10, .f32_gflops = 100, .gemm_bf16_gflops = 800};
    const Roofline small = roofline({.bytes = 5e8}, 20.0, c, DType::bf16);
    CHECK(small.from_cache);
    CHECK(small.frac_of_copy == 0);
    CHECK(small.achieved_gbps == doctest::Approx(25));
    const Roofline large = roofline({.bytes = 6e8}, 20.0, c, DType::bf16);
    CHECK_FALSE(large.from_cache);
    CHECK(large.frac_of_copy == 1);
    CHECK_FALSE(roofline({.bytes = 3e8}, 20.0, c, DType::bf16).from_cache);
    CHECK(roofline({.flops = 1e9}, 1.0, c, DType::bf16).frac_of_matmul == 1);
    CHECK(roofline({.host_bytes = 1e9}, 50.0, c, DType::bf16).frac_of_copy_in == 1);
    const SeenRates seen = seen_rates({.bytes = 6e8, .flops = 3e9}, 20.0, DType::bf16);
    CHECK(seen.read_gbps == doctest::Approx(30));
    CHECK(seen.cached_gbps == 0);
    CHECK(seen.gflops == doctest::Approx(150));
    CHECK(seen.dtype == DType::bf16);
    CHECK(seen_rates({.bytes = 5e8}, 20.0, DType::f32).read_gbps == 0);
    CHECK(seen_rates({.bytes = 5e8}, 20.0, DType::f32).cached_gbps == doctest::Approx(25));
  }
}

TEST_SUITE("bench/hardware") {
  TEST_CASE("a measurement gives rates, and sees another process on its core") {
    // On one core with a process that computes, half of the time is that one's.
    cpu_set_t before, one;
    REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    const pid_t self = getpid(), other = fork();
    if (other == 0) {
      while (getppid() == self) {
      }
      _exit(0);
    }
    const int threads_before = max_threads();
    set_threads(1);
    const Ceilings c = measure_ceilings(1);
    set_threads(threads_before);
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
    sched_setaffinity(0, sizeof(before), &before);
    CHECK(c.threads == 1);
    CHECK(c.mem_read_gbps > 0.1);
    CHECK(c.mem_rows_gbps > 0.1);
    CHECK(c.code_gscores > 1e-4);
    CHECK(c.f32_gflops > 0.1);
    CHECK(c.gemm_f32_gflops > 0.1);
    CHECK((c.gemm_bf16_gflops > 0) == (isa_in_use() >= Isa::avx512_bf16));
    if (std::filesystem::exists("/proc/self/schedstat")) {
      CHECK(c.waited > 0.2);
      CHECK(busy_text(c) == "threads waited for cores in use by other processes");
    }
  }

  TEST_CASE("a rate is that of the fastest pass, its spread the distance of the median") {
    const PassRate r = pass_rate(3e9, std::vector{2.0, 1.0, 1.5});
    CHECK(r.rate == doctest::Approx(3));
    CHECK(r.spread == doctest::Approx(0.5));
    CHECK(pass_rate(1e9, std::vector{1.0}).spread == 0);
  }

  TEST_CASE("limits are measured once and then read back") {
    Measured m;
    CHECK(!known_ceilings(1, m.file));
    CHECK(m.cached(1).f32_gflops == 100);
    CHECK(m.cached(1).mem_read_gbps == 20);
    CHECK(m.calls == 1);
    const auto known = known_ceilings(1, m.file);
    REQUIRE(known);
    CHECK(known->doubt.empty());
    for (const double Ceilings::*rate :
         {&Ceilings::mem_read_gbps, &Ceilings::mem_rows_gbps, &Ceilings::code_gscores,
          &Ceilings::f32_gflops, &Ceilings::gemm_f32_gflops, &Ceilings::gemm_bf16_gflops})
      CHECK((*known).*rate == m.next.*rate);
    CHECK(!known_ceilings(2, m.file));
    CHECK(m.cached(2).threads == 2);
    CHECK(m.calls == 2);
  }

  TEST_CASE("limits of a busy machine are used, not kept") {
    Measured m;
    for (double Ceilings::*sign : {&Ceilings::spread, &Ceilings::waited}) {
      m.next = Measured::usual();
      m.next.*sign = 0.11;
      const Ceilings c = m.cached(1);
      CHECK(c.f32_gflops == 100);
      CHECK(doubt_text(c) == "the limits of this machine are not saved: " + busy_text(m.next) +
                                 ". kernel-bench --limits measures them again");
      CHECK(!known_ceilings(1, m.file));
    }
    m.next.spread = m.next.waited = 0.1;
    CHECK(doubt_text(m.cached(1)).empty());
    CHECK(known_ceilings(1, m.file));
  }

  TEST_CASE("more threads are not limited to less than fewer") {
    Measured m;
    m.next.f32_gflops = 747;
    m.cached(1);
    m.next.f32_gflops = 157;
    const Ceilings two = m.cached(2);
    CHECK(two.f32_gflops == 747);
    CHECK(two.doubt == "2 threads reach fewer GFLOP/s of f32 multiply-adds than 1");
    CHECK(!known_ceilings(2, m.file));
    m.next.f32_gflops = 680;  // as fast, but for noise
    CHECK(m.cached(2).doubt.empty());
    CHECK(known_ceilings(2, m.file)->f32_gflops == 747);
    // The other way round: what had been kept for two is found to be too low.
    Measured late;
    late.next.mem_read_gbps = 10;
    late.cached(2);
    CHECK(known_ceilings(2, late.file));
    late.next.mem_read_gbps = 12;
    late.cached(1);
    CHECK(!known_ceilings(2, late.file));
  }

  TEST_CASE("a run that beats a limit has it measured again, and it is never lower than the run") {
    Measured m;
    m.cached(1);
    CHECK(m.cached(1, {.read_gbps = 20, .gflops = 400, .dtype = DType::bf16}).mem_read_gbps == 20);
    CHECK(m.calls == 1);
    m.next.mem_read_gbps = 30;
    m.next.f32_gflops = 90;
    const Ceilings higher = m.cached(1, {.read_gbps = 25});
    CHECK(m.calls == 2);
    CHECK(higher.mem_read_gbps == 30);
    CHECK(higher.f32_gflops == 100);  // was reached before
    m.next.spread = 1;                // the run's own rate is no less sure on a busy machine
    CHECK(m.cached(1, {.read_gbps = 40}).mem_read_gbps == 40);
    CHECK(m.cached(1, {.gflops = 300}).gemm_f32_gflops == 300);
    CHECK(m.cached(1, {.gflops = 500, .dtype = DType::bf16}).gemm_bf16_gflops == 500);
    CHECK(m.calls == 5);
    const auto known = known_ceilings(1, m.file);
    REQUIRE(known);
    CHECK(known->mem_read_gbps == 40);
    CHECK(known->gemm_f32_gflops == 300);
    CHECK(known->gemm_bf16_gflops == 500);
    // A clock that jumps during that measurement leaves the known limits.
    m.next.f32_gflops = -6.7e-7;
    CHECK(m.cached(1, {.gflops = 600, .dtype = DType::bf16}).gemm_bf16_gflops == 600);
    CHECK(known_ceilings(1, m.file)->f32_gflops == 100);
  }

  TEST_CASE("reads from a cache have memory measured once, and are no limit of it") {
    Measured m;
    m.cached(1);
    CHECK(m.cached(1, {.cached_gbps = 19}).mem_read_gbps == 20);
    CHECK(m.calls == 1);
    CHECK(m.cached(1, {.cached_gbps = 50}).mem_read_gbps == 20);
    CHECK(m.cached(1, {.cached_gbps = 55}).mem_read_gbps == 20);
    CHECK(m.calls == 2);
    m.next.mem_read_gbps = 80;  // memory was slow before
    CHECK(m.cached(1, {.cached_gbps = 70}).mem_read_gbps == 80);
    CHECK(m.calls == 3);
  }

  TEST_CASE("known limits are raised without a measurement, unknown ones are not made up") {
    Measured m;
    raise_ceilings(1, {.read_gbps = 25}, m.file);
    CHECK(!known_ceilings(1, m.file));
    m.cached(1);
    raise_ceilings(1, {.read_gbps = 25, .cached_gbps = 99, .gflops = 500}, m.file);
    const auto known = known_ceilings(1, m.file);
    REQUIRE(known);
    CHECK(known->mem_read_gbps == 25);
    CHECK(known->gemm_f32_gflops == 500);
    CHECK(known->cached_gbps == 0);
  }

  TEST_CASE("renewed limits replace what was kept, unless they are in doubt") {
    Measured m;
    m.cached(1);
    m.next.f32_gflops = 60;
    CHECK(renewed_ceilings(1, m.file, m.measure()).f32_gflops == 60);
    CHECK(known_ceilings(1, m.file)->f32_gflops == 60);
    m.next.f32_gflops = 30;
    m.next.waited = 0.5;
    CHECK(renewed_ceilings(1, m.file, m.measure()).f32_gflops == 30);
    CHECK(known_ceilings(1, m.file)->f32_gflops == 60);
    m.next.waited = 0;
    m.folder.write("file", "");
    CHECK(renewed_ceilings(1, m.folder / "file" / "x.json", m.measure()).doubt ==
          "the file cannot be written");
  }

  TEST_CASE("a file that cannot be used only costs the measurement") {
    Measured m;
    m.cached(1);
    const io::Json kept = io::parse_json(io::read_file(m.file), "ceilings.json");
    io::Json older = kept, other_boot = kept, newer = kept, spoilt = kept, text = kept;
    older.erase("format");
    newer["format"] = 3;
    other_boot["boot_id"] = "another";
    for (io::Json& entry : spoilt)
      if (entry.is_object()) entry["f32_gflops"] = -6.7e-7;  // as a clock that went back leaves
    for (io::Json& entry : text)
      if (entry.is_object()) entry["mem_read_gbps"] = "20";
    int calls = m.calls;
    for (const std::string& content :
         {std::string(), std::string("{\"boot_id\": \"..."), std::string("[1, 2]"),
          std::string(100, '\0'), older.dump(), newer.dump(), other_boot.dump(), spoilt.dump(),
          text.dump()}) {
      CAPTURE(content);
      m.folder.write("ceilings.json", content);
      CHECK(!known_ceilings(1, m.file));
      CHECK(m.cached(1).f32_gflops == 100);
      CHECK(m.calls == ++calls);
      CHECK(known_ceilings(1, m.file));  // whole again
    }
    m.folder.write("file", "");
    for (const std::filesystem::path& file :
         {m.folder / "file" / "ceilings.json", std::filesystem::path()}) {
      const Ceilings c = cached_ceilings(1, {}, file, m.measure());
      CHECK(c.f32_gflops == 100);
      CHECK(c.doubt.empty());
      CHECK(!known_ceilings(1, file));
    }
  }
}

TEST_SUITE("bench/kernel") {
  TEST_CASE("rates beyond the memory's are no share of it") {
    const Ceilings c{.threads = 1, .mem_read_gbps = 20, .f32_gflops = 100};
    KernelCase kernel;
    kernel.work.bytes = 1e7;
    for (const auto& [ms, cell] :
         {std::pair<double, std::string>{1.0, "50"}, {0.5, "100"}, {0.4, "-"}}) {
      KernelResult r;
      r.samples.ms = {ms, ms};
      r.roofline = roofline(kernel.work, ms, c, DType::f32);
      CHECK(kernel_row(kernel_record(kernel, r, c).json()).at(6) == cell);
    }
    Record failed = kernel_record(kernel, c);
    failed.set_failed(make_error(ErrorKind::numeric, "", "off by one"));
    CHECK(kernel_row(failed.json()).back() == "differs from its reference");
    CHECK(kernel_row(failed.json()).size() == kernel_view().columns.size());
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
