#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bench/harness.h"
#include "bench/roofline.h"

namespace tandem::bench {

using Json = nlohmann::ordered_json;

/// A new record's name: 48 bits of milliseconds, then 80 random ones, in 26 characters of
/// Crockford's base 32 (the ULID scheme). Names of one process ascend by time.
std::string new_record_id();

/// How the line of every record begins.
inline constexpr std::string_view kRecordBegin = R"({"schema":"tandem.result/)";

/// One measured point in the schema "tandem.result/1": a JSON object whose groups are described in
/// the README of recipes and results. Absent means unknown; zero is never written for it.
class Record {
 public:
  /// Fills identity, code, host and env. Threads and ISA are those in use now.
  /// ceilings  the host's, if measured: host.mem_read_gbps
  explicit Record(const std::string& tool, const machine::Ceilings* ceilings = nullptr);

  /// A group such as "workload" or "throughput", made when first asked for.
  Json& group(const std::string& name) { return value_[name]; }

  /// timing.<phase>, with a warning for every oddity of the samples.
  void set_timing(const std::string& phase, const Samples& samples);
  /// steady: whether the samples of what the record is about are; with a warning where not.
  void set_steady(const std::string& phase, const Samples& samples);
  /// roofline, for one step of the given work.
  void set_roofline(const Work& work, const Roofline& r);
  /// memory.<device>.<part> in bytes.
  void set_memory(const std::string& device, const std::string& part, size_t bytes);
  /// status failed and what went wrong.
  void set_failed(const Error& error);
  /// Each text once.
  void warn(const std::string& text);

  const Json& json() const { return value_; }
  std::string id() const { return value_.at("id"); }
  /// One line of JSON with its newline; invalid UTF-8 is replaced.
  std::string line() const;

 private:
  Json value_;
};

}  // namespace tandem::bench
