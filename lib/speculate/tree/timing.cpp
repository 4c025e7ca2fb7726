#include "speculate/tree/timing.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::speculate {
namespace {

constexpr const char* kTimingFormat = "sequoia-timing/1";
constexpr size_t kMostTimingBytes = size_t{16} << 20;
constexpr int kMostTokens = 1 << 28;
constexpr int kMostSequences = 1 << 20;
constexpr double kMostMs = 1e9;  // eleven days; sums and continuations stay finite

void check_curve(const TimeCurve& curve, const std::string& name, const std::string& where) {
  if (curve.tokens.empty() || curve.tokens.size() != curve.ms.size())
    throw input_error(
        where, "{}: found {} token counts and {} times, expected equal numbers of at least 1", name,
        curve.tokens.size(), curve.ms.size());
  for (size_t i = 0; i < curve.tokens.size(); ++i) {
    if (curve.tokens[i] <= (i == 0 ? 0 : curve.tokens[i - 1]))
      throw input_error(where, "{}: token count {} follows {}, expected ascending counts from 1",
                        name, curve.tokens[i], i == 0 ? 0 : curve.tokens[i - 1]);
    if (!(curve.ms[i] >= 0 && curve.ms[i] <= kMostMs))
      throw input_error(where, "{}: {} ms for {} tokens, expected a time from 0 to 1e9", name,
                        curve.ms[i], curve.tokens[i]);
  }
}

TimeCurve curve_of(const io::Json& json, const std::string& name, const std::string& where) {
  TimeCurve curve;
  for (const io::Json& n : io::get_array(json, "tokens", where))
    curve.tokens.push_back(
        static_cast<int>(io::as_int(n, name + ".tokens", where, 1, kMostTokens)));
  for (const io::Json& ms : io::get_array(json, "ms", where)) {
    if (!ms.is_number())
      throw input_error(where, "{}.ms: expected milliseconds, found {}", name, io::describe(ms));
    curve.ms.push_back(ms.get<double>());
  }
  return curve;
}

}  // namespace

const StepCost& TimingTable::bucket(int context, const std::string& where) const {
  if (context == 0 && buckets.size() == 1) return buckets.front();
  if (buckets.front().batch != buckets.back().batch)
    throw recipe_error(where, "the timing table has batches from {} to {}, expected one",
                       buckets.front().batch, buckets.back().batch)
        .hint("give a file with times of the batch of this run");
  const auto found =
      std::ranges::find_if(buckets, [&](const StepCost& b) { return b.context >= context; });
  std::vector<int> contexts;
  for (const StepCost& b : buckets) contexts.push_back(b.context);
  if (context == 0 || found == buckets.end())
    throw recipe_error(where, "expected a context of up to {} tokens, found {}", contexts.back(),
                       context == 0 ? "none" : fmt::format("{}", context))
        .hint(fmt::format("choose one of the measured contexts: {} tokens",
                          fmt::join(contexts, ", ")));
  return *found;
}

void check_timing(const TimingTable& table, const std::string& where) {
  if (table.buckets.empty()) throw input_error(where, "expected at least one bucket, found none");
  if (const double ms = table.buckets.front().overhead_ms; !(ms >= 0 && ms <= kMostMs))
    throw input_error(where, "overhead_ms is {}, expected a time from 0 to 1e9", ms);
  for (size_t i = 0; i < table.buckets.size(); ++i) {
    const StepCost& b = table.buckets[i];
    check_curve(b.target, fmt::format("buckets[{}].target", i), where);
    check_curve(b.draft, fmt::format("buckets[{}].draft", i), where);
    if (b.target.tokens.front() != 1)
      throw input_error(where, "buckets[{}].target begins at {} tokens, expected 1", i,
                        b.target.tokens.front())
          .hint("measure the time of one token, the baseline of speculation");
    if (b.batch < 1)
      throw input_error(where, "buckets[{}].batch is {}, expected at least 1", i, b.batch);
    if (i == 0) continue;
    const StepCost& before = table.buckets[i - 1];
    if (b.batch < before.batch)
      throw input_error(where, "buckets[{}].batch is {} after {}, expected ascending batches", i,
                        b.batch, before.batch);
    if (b.batch == before.batch && b.context <= before.context)
      throw input_error(where, "buckets[{}].context is {} after {}, expected ascending contexts", i,
                        b.context, before.context);
  }
}

TimingTable parse_timing(std::string_view text, const std::string& where) {
  const io::Json json = io::parse_json(text, where);
  io::check_format(json, kTimingFormat, where);
  TimingTable table;
  const double overhead_ms = io::find_double(json, "overhead_ms", where).value_or(0);
  const bool skip_deepest = io::find_bool(json, "skip_deepest", where).value_or(false);
  for (const io::Json& item : io::get_array(json, "buckets", where)) {
    const std::string name = fmt::format("buckets[{}]", table.buckets.size());
    if (!item.is_object())
      throw input_error(where, "{}: expected an object, found {}", name, io::describe(item));
    table.buckets.push_back(
        {.batch =
             static_cast<int>(io::find_int(item, "batch", where, 1, kMostSequences).value_or(1)),
         .context =
             static_cast<int>(io::find_int(item, "context", where, 0, kMostTokens).value_or(0)),
         .target = curve_of(io::get_object(item, "target", where), name + ".target", where),
         .draft = curve_of(io::get_object(item, "draft", where), name + ".draft", where),
         .overhead_ms = overhead_ms,
         .skip_deepest = skip_deepest});
  }
  check_timing(table, where);
  return table;
}

std::string timing_json(const TimingTable& table, const nlohmann::ordered_json& about) {
  using Json = nlohmann::ordered_json;
  Json json = {{"format", kTimingFormat}};
  json.update(about);
  json["overhead_ms"] = table.buckets.front().overhead_ms;
  json["skip_deepest"] = table.buckets.front().skip_deepest;
  const auto curve = [](const TimeCurve& c) { return Json{{"tokens", c.tokens}, {"ms", c.ms}}; };
  for (const StepCost& b : table.buckets) {
    Json item = Json::object();
    if (b.batch > 1) item["batch"] = b.batch;
    if (b.context > 0) item["context"] = b.context;
    item["target"] = curve(b.target);
    item["draft"] = curve(b.draft);
    json["buckets"].push_back(std::move(item));
  }
  return json.dump(1) + "\n";
}

TimingTable read_timing(const std::filesystem::path& path) {
  return parse_timing(io::read_file(path, kMostTimingBytes), path.string());
}

}  // namespace tandem::speculate
