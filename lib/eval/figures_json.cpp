#include "eval/figures_json.h"

#include "io/json.h"

namespace tandem::eval {
namespace {

constexpr std::pair<const char*, int64_t RoundCounts::*> kRoundCounts[] = {
    {"rounds", &RoundCounts::rounds},
    {"emitted", &RoundCounts::emitted},
    {"accepted", &RoundCounts::accepted},
    {"offered", &RoundCounts::offered},
    {"cut_short", &RoundCounts::cut_short}};

}  // namespace

io::Json reads_json(const Reads& reads) {
  return {{"selected", reads.selected}, {"fixed", reads.fixed}, {"bytes", reads.bytes}};
}

Reads read_reads(const io::Json& json, const std::string& where) {
  return {.selected = io::get_double(json, "selected", where),
          .fixed = io::get_double(json, "fixed", where),
          .bytes = io::get_double(json, "bytes", where)};
}

io::Json rounds_json(const RoundCounts& rounds) {
  io::Json json = {{"density", rounds.density}, {"lossy", rounds.lossy}};
  for (const auto& [name, count] : kRoundCounts) json[name] = rounds.*count;
  return json;
}

RoundCounts read_rounds(const io::Json& json, const std::string& where) {
  RoundCounts r;
  for (const auto& [name, count] : kRoundCounts) r.*count = io::get_int(json, name, where, 0);
  r.density = io::get_double(json, "density", where);
  r.lossy = io::get_bool(json, "lossy", where);
  return r;
}

}  // namespace tandem::eval
