#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/parallel.h"
#include "bench/record.h"

using namespace tandem;
using namespace tandem::bench;

TEST_SUITE("bench/record") {
  TEST_CASE("ids are unique, ascending and of the right form") {
    std::vector<std::string> ids;
    for (int i = 0; i < 5000; ++i) ids.push_back(new_record_id());
    CHECK(std::is_sorted(ids.begin(), ids.end()));
    CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == ids.size());
    for (const std::string& id : ids) {
      REQUIRE(id.size() == 26);
      REQUIRE(id.find_first_not_of("0123456789ABCDEFGHJKMNPQRSTVWXYZ") == std::string::npos);
    }
  }

  TEST_CASE("a fresh record names the run, the code and the host") {
    const machine::Ceilings ceilings{.threads = 2, .mem_read_gbps = 12.5};
    const Record r("kernel-bench", &ceilings);
    const Json& j = r.json();
    CHECK(j.at("schema") == "tandem.result/1");
    CHECK(j.at("tool") == "kernel-bench");
    CHECK(j.at("status") == "ok");
    CHECK(j.at("git_dirty").is_boolean());
    CHECK(j.at("cpu_isa") == isa_name(isa_in_use()));
    const std::string time = j.at("time_utc");
    CHECK(time.size() == 20);
    CHECK(time[10] == 'T');
    CHECK(time.back() == 'Z');
    const Json& host = j.at("host");
    CHECK(host.at("threads_used") == max_threads());
    CHECK(host.at("cores") >= 1);
    CHECK(host.at("mem_bytes") > 1000000);
    CHECK(host.at("mem_read_gbps") == 12.5);
    CHECK_FALSE(Record("x").json().at("host").contains("mem_read_gbps"));
    CHECK_FALSE(j.contains("timing"));
  }

  TEST_CASE("timing, roofline, memory, baseline, failure") {
    Record r("t");
    Samples s{.warmup = 3, .runs_per_sample = 1, .ms = std::vector<double>(20, 2.0)};
    s.ms[7] = 2.5;
    r.set_timing("decode_step", s);
    const Json& timing = r.json().at("timing").at("decode_step");
    CHECK(timing.at("n") == 20);
    CHECK(timing.at("warmup") == 3);
    CHECK(timing.at("samples_ms").size() == 20);
    CHECK(timing.at("p50") == 2.0);
    CHECK(timing.at("max") == 2.5);
    REQUIRE(r.json().at("warnings").size() >= 1);
    const size_t n_warnings = r.json().at("warnings").size();
    r.warn(r.json().at("warnings")[0]);
    CHECK(r.json().at("warnings").size() == n_warnings);

    const machine::Ceilings c{.threads = 1, .mem_read_gbps = 10, .f32_gflops = 100};
    const Work work{.bytes = 1e7, .flops = 2e7};
    r.set_roofline(work, roofline(work, 2.0, c, DType::f32));
    CHECK(r.json().at("roofline").at("frac_of_copy") == doctest::Approx(0.5));
    CHECK(r.json().at("roofline").at("achieved_tflops") == doctest::Approx(0.01));
    CHECK(r.json().at("roofline").at("bound") == "memory");
    CHECK_FALSE(r.json().at("roofline").contains("host_bytes_per_step"));
    CHECK_FALSE(r.json().at("roofline").contains("from_cache"));
    Record cached("x");
    cached.set_roofline({.bytes = 1e7}, roofline({.bytes = 1e7}, 0.5, c, DType::f32));
    CHECK(cached.json().at("roofline").at("from_cache") == true);
    CHECK_FALSE(cached.json().at("roofline").contains("frac_of_copy"));
    const machine::Ceilings gpu{.mem_read_gbps = 4000, .copy_in_gbps = 50};
    const Work streamed{.bytes = 2e9, .host_bytes = 1e9};
    r.set_roofline(streamed, roofline(streamed, 25.0, gpu, DType::bf16));
    CHECK(r.json().at("roofline").at("host_bytes_per_step") == 1e9);
    CHECK(r.json().at("roofline").at("achieved_copy_in_gbps") == doctest::Approx(40));
    CHECK(r.json().at("roofline").at("frac_of_copy_in") == doctest::Approx(0.8));
    CHECK(r.json().at("roofline").at("bound") == "host");

    r.set_memory("cpu", "kv", 4096);
    r.set_memory("cpu", "tables", 0);  // unknown is absent
    CHECK(r.json().at("memory").at("cpu") == Json{{"kv", 4096}});

    r.set_failed(make_error(ErrorKind::memory, "kv", "needs 3 GiB"));
    CHECK(r.json().at("status") == "failed");
    CHECK(r.json().at("error").at("kind") == "memory");
    CHECK(r.json().at("error").at("message") == "kv: needs 3 GiB");
  }

  TEST_CASE("a line parses back, even with invalid text in it; many samples are capped") {
    Record r("t");
    r.group("model")["name"] = "bad \xff byte";
    r.set_timing("step",
                 {.warmup = 0, .runs_per_sample = 1, .ms = std::vector<double>(10500, 1.0)});
    const std::string line = r.line();
    CHECK(std::count(line.begin(), line.end(), '\n') == 1);
    const Json back = Json::parse(line);
    CHECK(back.at("timing").at("step").at("n") == 10500);
    CHECK(back.at("timing").at("step").at("samples_ms").size() == 10000);
  }
}
