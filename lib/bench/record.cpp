#include "bench/record.h"

#include <fmt/chrono.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>

#include "base/parallel.h"
#include "tandem_version.h"

namespace tandem::bench {
namespace {

constexpr size_t kMaxSamples = 10000;

const char* kind_name(ErrorKind kind) {
  constexpr std::array kNames = {"usage",  "recipe",  "input",       "memory",
                                 "device", "numeric", "interrupted", "internal"};
  return kNames[static_cast<size_t>(kind)];
}

/// The variables that may influence where things are found or how they run (never a result).
Json environment() {
  Json env = Json::object();
  for (const char* name :
       {"TANDEM_CACHE_DIR", "TANDEM_RECIPE_PATH", "TANDEM_MODEL_DIR", "TANDEM_LOG", "TANDEM_ISA",
        "TANDEM_GPU_ISA", "NO_COLOR", "TERM", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name)) env[name] = value;
  return env;
}

Json describe_host(const machine::Ceilings* ceilings) {
  const machine::HostInfo info = machine::read_host_info();
  Json host = {{"os", info.os},
               {"kernel", info.kernel},
               {"cpu_model", info.cpu_model},
               {"sockets", info.sockets},
               {"cores", info.cores},
               {"threads_used", max_threads()},
               {"numa_nodes", info.numa_nodes},
               {"mem_bytes", info.mem_bytes}};
  if (ceilings && ceilings->mem_read_gbps > 0) host["mem_read_gbps"] = ceilings->mem_read_gbps;
  if (ceilings && ceilings->copy_in_gbps > 0) host["copy_in_gbps"] = ceilings->copy_in_gbps;
  return host;
}

Json summary_json(const Samples& samples) {
  const Summary s = summarize(samples.ms);
  const size_t kept = std::min(samples.ms.size(), kMaxSamples);
  Json timing = {{"n", s.n}, {"warmup", samples.warmup}};
  if (samples.runs_per_sample > 1) timing["runs_per_sample"] = samples.runs_per_sample;
  timing["samples_ms"] =
      std::vector<double>(samples.ms.begin(), samples.ms.begin() + static_cast<long>(kept));
  for (const auto& [key, x] : {std::pair{"mean", s.mean},
                               {"stddev", s.stddev},
                               {"min", s.min},
                               {"p50", s.p50},
                               {"p90", s.p90},
                               {"p95", s.p95},
                               {"p99", s.p99},
                               {"max", s.max}})
    timing[key] = x;
  return timing;
}

}  // namespace

std::string new_record_id() {
  static std::mutex mutex;
  static uint64_t last_ms = 0;
  static std::array<uint8_t, 10> random{};
  const std::lock_guard lock(mutex);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  if (ms > last_ms) {
    last_ms = ms;
    if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
      random[0] = static_cast<uint8_t>(getpid());
  } else {
    // The same millisecond, or the clock went back: the next name after the last one.
    for (size_t i = random.size(); i-- > 0 && ++random[i] == 0;) {
    }
  }
  constexpr const char* kAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  std::string id;
  for (int shift = 45; shift >= 0; shift -= 5) id += kAlphabet[(last_ms >> shift) & 31];
  uint32_t bits = 0;
  int n_bits = 0;
  for (const uint8_t byte : random) {
    bits = bits << 8 | byte;
    for (n_bits += 8; n_bits >= 5; n_bits -= 5) id += kAlphabet[(bits >> (n_bits - 5)) & 31];
  }
  return id;
}

Record::Record(const std::string& tool, const machine::Ceilings* ceilings) {
  value_ = {{"schema", "tandem.result/1"},
            {"id", new_record_id()},
            {"time_utc", fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(std::time(nullptr)))},
            {"tool", tool},
            {"tool_version", TANDEM_VERSION},
            {"status", "ok"},
            {"git_commit", TANDEM_GIT_COMMIT},
            {"git_dirty", TANDEM_GIT_DIRTY},
            {"build_type", TANDEM_BUILD_TYPE},
            {"compiler", TANDEM_COMPILER},
            {"cpu_isa", isa_name(isa_in_use())},
            {"host", describe_host(ceilings)}};
  if (Json env = environment(); !env.empty()) value_["env"] = std::move(env);
}

void Record::set_timing(const std::string& phase, const Samples& samples) {
  if (samples.ms.empty()) return;
  group("timing")[phase] = summary_json(samples);
  for (const std::string& text : sample_warnings(phase, samples.ms)) warn(text);
}

void Record::set_steady(const std::string& phase, const Samples& samples) {
  const Steadiness s = steadiness(samples.ms);
  if (s.n < 3) return;
  value_["steady"] = s.is_steady();
  group("timing")[phase]["outside_frac"] = s.outside;
  if (!s.is_steady()) warn(phase + ": " + s.text());
}

void Record::set_roofline(const Work& work, const Roofline& r) {
  Json& g = group("roofline");
  if (work.bytes > 0) {
    g["bytes_per_step"] = work.bytes;
    g["achieved_gbps"] = r.achieved_gbps;
    if (r.frac_of_copy > 0) g["frac_of_copy"] = r.frac_of_copy;
    if (r.from_cache) g["from_cache"] = true;
  }
  if (work.flops > 0) {
    g["flops_per_step"] = work.flops;
    g["achieved_tflops"] = r.achieved_gflops * 1e-3;
    if (r.frac_of_matmul > 0) g["frac_of_matmul"] = r.frac_of_matmul;
  }
  if (work.host_bytes > 0) {
    g["host_bytes_per_step"] = work.host_bytes;
    g["achieved_copy_in_gbps"] = r.copy_in_gbps;
    if (r.frac_of_copy_in > 0) g["frac_of_copy_in"] = r.frac_of_copy_in;
  }
  constexpr std::array kBounds = {"memory", "compute", "host"};
  if (r.frac_of_copy > 0 || r.frac_of_matmul > 0 || r.frac_of_copy_in > 0)
    g["bound"] = kBounds[static_cast<size_t>(r.bound)];
}

void Record::set_memory(const std::string& device, const std::string& part, size_t bytes) {
  if (bytes > 0) group("memory")[device][part] = bytes;
}

void Record::set_failed(const Error& error) {
  value_["status"] = "failed";
  value_["error"] = {{"kind", kind_name(error.kind())}, {"message", error.what()}};
}

void Record::warn(const std::string& text) {
  Json& warnings = group("warnings");
  if (std::find(warnings.begin(), warnings.end(), text) == warnings.end()) warnings.push_back(text);
}

std::string Record::line() const {
  return value_.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::bench
