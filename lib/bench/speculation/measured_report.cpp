#include "bench/speculation/measured_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/sha256.h"

namespace tandem::bench {
namespace {

double sum_of(const WayRuns& way, double BatchRun::*part) {
  double sum = 0;
  for (const BatchRun& run : way.batches) sum += run.*part;
  return sum;
}

double new_tokens_of(const WayRuns& way) { return sum_of(way, &BatchRun::new_tokens); }

double end_to_end_s(const WayRuns& way, const std::vector<double>& prefill_s) {
  return std::accumulate(prefill_s.begin(), prefill_s.end(), 0.0) +
         sum_of(way, &BatchRun::prefill_s) + sum_of(way, &BatchRun::decode_s);
}

/// Acceptance by parts of the output; from_token counts from 0.
Json by_output_json(const WayRuns& way) {
  Json parts = Json::array();
  for (size_t i = 0; i < way.by_output.size(); ++i) {
    const speculate::RoundStats& s = way.by_output[i];
    if (s.rounds == 0) continue;
    Json& part = parts.emplace_back(
        Json{{"from_token", static_cast<double>(i) * way.new_tokens / kOutputParts},
             {"rounds", s.rounds},
             {"accepted", s.accepted},
             {"emitted", s.emitted}});
    if (way.way.is_chain()) part["tested"] = s.tested;
  }
  return parts;
}

Json tree_json(const speculate::TokenTree& tree) {
  return {{"size", tree.size()},
          {"depth", tree.levels() - 1},
          {"widths", tree.widths()},
          {"sha256", sha256_hex(fmt::format("{}", fmt::join(tree.n_children, ",")))}};
}

/// Of the rounds within those of a nested way, a round of the whole batch each.
Json within_json(const WayRuns& way) {
  const speculate::RoundStats& s = *way.within;
  const NestedWay& nested = *way.way.nested;
  double rounds = 0;  // of a batch
  for (const BatchRun& run : way.batches) rounds += run.whole_steps * nested.shape.rounds;
  Json j = counts_json(s);
  const int levels = nested.tree.levels() - 1;
  j.update({{"enough", nested.shape.enough},
            {"rounds_each", nested.shape.rounds},
            {"taken_part", static_cast<double>(s.rounds) /
                               static_cast<double>(std::max<int64_t>(1, way.stats->rounds))},
            {"draft_level_ms", 1e3 * s.draft_s / rounds / levels},
            {"target_ms", 1e3 * s.target_s / rounds},
            {"verify_ms", 1e3 * s.verify_s / rounds}});
  if (way.way.draft.tree.empty())
    j.update({{"gamma", levels}, {"alpha", s.share_of_tested()}});
  else
    j["tree"] = tree_json(nested.tree);
  if (nested.acceptance) j["acceptance"] = nested.acceptance->rows;
  return j;
}

Json spec_json(const PointRuns& point, const WayRuns& way) {
  const WayRuns& plain = point.ways.front();
  const speculate::RoundStats& s = *way.stats;
  const RoundParts p = parts_of(way);
  const Gain gain = gain_of(plain, way, point.prefill_s);
  const double plain_ms = 1e3 * plain.step_s();
  Json j = counts_json(s);
  j.update({{"by_output", by_output_json(way)},
            {"draft_ms", p.draft},
            {"target_ms", p.target},
            {"verify_ms", p.verify},
            {"rest_ms", p.rest},
            {"round_ms", p.round},
            {"ms_per_token", 1e3 * way.token_s()},
            {"plain_step_ms", plain_ms},
            {"target_over_plain", p.target / plain_ms},
            {"speedup_measured", gain.speedup},
            {"speedup_to_end", gain.to_end},
            {"speedup_end_to_end", gain.end_to_end}});
  if (s.host_s > 0) j["host_us"] = 1e3 * p.round * s.host_s / sum_of(way, &BatchRun::whole_s);
  if (gain.interval)
    j.update(
        {{"speedup_ci95_low", gain.interval->low}, {"speedup_ci95_high", gain.interval->high}});
  if (gain.pays_from) j["pays_from_new_tokens"] = *gain.pays_from;
  if (way.way.is_chain()) {
    const auto rounds = static_cast<double>(std::max<int64_t>(1, s.rounds));
    const double gamma = static_cast<double>(s.drafted) / rounds;
    j["gamma"] = way.way.chooses ? Json("auto") : Json(way.way.gamma());
    if (way.way.chooses || way.way.nested) j["mean_gamma"] = gamma;
    j["tested"] = s.tested;
    j["alpha"] = s.share_of_tested();
    if (way.way.nested) j["within"] = within_json(way);
    if (gamma > 0) j["draft_step_ms"] = p.draft / gamma;
    if (gamma > 0) j["draft_step_over_plain"] = p.draft / gamma / plain_ms;
    if (way.way.simulated) j["alpha_simulated"] = way.way.acceptance->rows.front().front();
  } else {
    j["tree"] = tree_json(way.way.tree);
  }
  if (way.way.acceptance && !way.way.chooses)
    j["tokens_per_round_expected"] = way.way.expected_tokens();
  j["sequences"] = way.sequences;
  j["sequences_as_plain"] = way.as_plain;
  return j;
}

}  // namespace

Json counts_json(const speculate::RoundStats& s) {
  return {{"verify", s.rule},
          {"lossy", s.lossy},
          {"rounds", s.rounds},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"emitted", s.emitted},
          {"accepted_hist", s.accepted_hist},
          {"rate_by_position", s.rate_by_position()},
          {"share_accepted", s.share_accepted()},
          {"mean_tokens_per_round", s.tokens_per_round()}};
}

RoundParts parts_of(const WayRuns& way) {
  const auto ms = [&](const std::function<double(const BatchRun&)>& seconds) {
    std::vector<double> of_batch;
    for (const BatchRun& run : way.batches)
      of_batch.push_back(1e3 * seconds(run) / run.whole_steps);
    return median(of_batch);
  };
  return {.draft = ms([](const BatchRun& r) { return r.draft_s; }),
          .target = ms([](const BatchRun& r) { return r.target_s; }),
          .verify = ms([](const BatchRun& r) { return r.verify_s; }),
          .rest = ms([](const BatchRun& r) {
            return std::max(0.0, r.whole_s - r.draft_s - r.target_s - r.verify_s);
          }),
          .round = 1e3 * way.step_s()};
}

Gain gain_of(const WayRuns& plain, const WayRuns& way, const std::vector<double>& prefill_s) {
  std::vector<double> ratios;
  for (size_t b = 0; b < way.batches.size(); ++b)
    ratios.push_back(plain.token_s(plain.batches[b]) / way.token_s(way.batches[b]));
  Gain gain{.speedup = median(ratios)};
  if (ratios.size() > 1) gain.interval = bootstrap_median_interval(ratios);
  const double more_tokens = new_tokens_of(way) / new_tokens_of(plain);  // 1, or texts ended early
  gain.to_end = more_tokens * sum_of(plain, &BatchRun::decode_s) / sum_of(way, &BatchRun::decode_s);
  gain.end_to_end = more_tokens * end_to_end_s(plain, prefill_s) / end_to_end_s(way, prefill_s);
  const double more_s = sum_of(way, &BatchRun::prefill_s) - sum_of(plain, &BatchRun::prefill_s);
  const double saved_s = plain.token_s() * (1 - 1 / gain.speedup);  // of each token after the first
  if (saved_s > 0)
    gain.pays_from = 1 + static_cast<int64_t>(std::ceil(std::max(
                             0.0, more_s / static_cast<double>(way.batches.size()) / saved_s)));
  return gain;
}

namespace {

bool is_prediction(const Json& r) { return cell(at(r, "/workload/phase")).starts_with("predict "); }

/// What a draft proposes: "3", "auto", "tree 16x5"; it follows the draft's name in the phase.
std::string shape_of(const Json& r, const std::string& draft) {
  std::string shape = cell(at(r, "/workload/phase"));
  shape.erase(0, std::min(shape.size(), std::string("rounds ").size() + draft.size() + 1));
  const bool is_nested = at(r, "/workload/draft/kind") == "nested";
  return shape.starts_with("gamma ") && !is_nested ? shape.substr(6) : shape;
}

std::vector<std::string> measured_row(const Json& r) {
  const Json &work = at(r, "/workload"), &spec = at(r, "/spec");
  const Json &draft = at(work, "/draft/name"), &low = at(spec, "/speedup_ci95_low"),
             &pays_from = at(spec, "/pays_from_new_tokens"),
             &tok_s = at(r, "/throughput/decode_tok_s");
  std::vector<std::string> cells = {cell(at(work, "/context_tokens")), cell(at(work, "/batch")),
                                    cell(at(work, "/temperature"), "{:g}")};
  const std::string phase = cell(at(work, "/phase"));
  if (const std::string failure = failure_of(r); !failure.empty()) {
    cells.push_back(phase == "point"               ? "all"
                    : phase.starts_with("rounds ") ? phase.substr(7)
                                                   : phase);
    cells.push_back(failure);
    return cells;
  }
  if (spec.is_null()) {
    cells.push_back(phase);
    cells.resize(12);
    if (tok_s.is_number())
      cells.push_back(
          fmt::format("{:.3f}", 1e3 * at(work, "/batch").get<double>() / tok_s.get<double>()));
    cells.push_back(cell(tok_s, "{:.0f}"));
    return cells;
  }
  std::string alpha = cell(at(spec, "/alpha"), "{:.3f}");
  if (at(work, "/simulated_acceptance") == true)
    alpha += alpha.empty() ? "simulated" : " simulated";
  const std::string name = cell(draft);
  cells.insert(cells.end(), {name, shape_of(r, name), alpha});
  for (const auto& [field, form] : {std::pair{"/share_accepted", "{:.3f}"},
                                    {"/mean_tokens_per_round", "{:.2f}"},
                                    {"/draft_ms", "{:.3f}"},
                                    {"/target_ms", "{:.3f}"},
                                    {"/verify_ms", "{:.3f}"},
                                    {"/rest_ms", "{:.3f}"},
                                    {"/round_ms", "{:.3f}"}})
    cells.push_back(cell(at(spec, field), form));
  cells.push_back(cell(tok_s, "{:.0f}"));
  cells.push_back(cell(at(spec, "/speedup_measured"), "{:.2f}"));
  cells.push_back(low.is_number()
                      ? cell(low, "{:.2f}") + "-" + cell(at(spec, "/speedup_ci95_high"), "{:.2f}")
                      : "");
  cells.push_back(cell(at(spec, "/speedup_to_end"), "{:.2f}"));
  cells.push_back(cell(at(spec, "/speedup_end_to_end"), "{:.2f}"));
  cells.push_back(pays_from.is_null() ? "never" : "token " + cell(pays_from));
  cells.push_back(cell(at(spec, "/speedup_predicted"), "{:.2f}"));
  return cells;
}

std::vector<std::string> predicted_row(const Json& r) {
  const Json &work = at(r, "/workload"), &p = at(r, "/predicted"), &most = at(p, "/most_sequences"),
             &alpha = at(work, "/alpha_assumed");
  std::vector<std::string> cells = {cell(at(work, "/context_tokens")), cell(at(work, "/batch")),
                                    cell(at(work, "/draft/name"))};
  if (const std::string failure = failure_of(r); !failure.empty()) {
    cells.push_back(failure);
    return cells;
  }
  const bool drafts = !alpha.is_null(), is_self = !at(p, "/row_key_tokens").is_null();
  const std::string source = cell(at(work, "/alpha_source"));
  const auto number = [&](const char* field, const char* form) { return cell(at(p, field), form); };
  const auto or_never = [&](const char* field) {
    return at(p, field).is_null() ? "never" : number(field, "{:.0f}");
  };
  cells.insert(
      cells.end(),
      {drafts ? cell(alpha, "{:.3f}") + " " + source.substr(0, source.find(':')) : "",
       number("/plain_step_ms", "{:.3f}"), drafts ? number("/draft_step_ms", "{:.3f}") : "",
       drafts ? number("/verify_ms", "{:.3f}") : "", number("/gamma", "{}"),
       number("/tokens_per_round", "{:.2f}"), number("/speedup", "{:.2f}"),
       number("/decode_tok_s", "{:.0f}"), number("/tpot_ms", "{:.3f}"),
       !drafts                           ? ""
       : at(p, "/least_alpha").is_null() ? "none"
                                         : number("/least_alpha", "{:.3f}"),
       is_self ? or_never("/critical_context_tokens") : "",
       drafts ? or_never("/pays_from_tokens") : "",
       most.is_number() && most < at(work, "/batch") ? cell(most) + " (below batch)" : cell(most)});
  return cells;
}

}  // namespace

RecordView measured_view() {
  return {.tools = bench_tools(),
          .takes = [](const Json& r) { return !is_prediction(r) && !is_of_phase(r); },
          .columns = {{"context"},  {"batch"},     {"T"},           {"draft", io::Align::left},
                      {"gamma"},    {"alpha"},     {"acc/drafted"}, {"tokens/step"},
                      {"draft ms"}, {"target ms"}, {"verify ms"},   {"rest ms"},
                      {"step ms"},  {"tok/s"},     {"speed-up"},    {"95 % CI"},
                      {"to last"},  {"total"},     {"pays from"},   {"predicted"}},
          .row = measured_row};
}

RecordView predicted_view() {
  return {.tools = bench_tools(),
          .takes = is_prediction,
          .columns = {{"context"},
                      {"batch"},
                      {"draft", io::Align::left},
                      {"alpha", io::Align::left},
                      {"step ms"},
                      {"draft ms"},
                      {"verify ms"},
                      {"gamma"},
                      {"tokens/step"},
                      {"predicted speed-up"},
                      {"tok/s"},
                      {"ms/token"},
                      {"min alpha"},
                      {"critical context"},
                      {"pays from"},
                      {"max sequences"}},
          .row = predicted_row};
}

void add_measured(Record& record, const PointRuns& point, const WayRuns& way,
                  double prompt_tokens) {
  record.set_timing(way.stats ? "round" : "decode_step", {.ms = way.step_ms});
  std::vector<double> prefill_ms;
  for (const double s : point.prefill_s) prefill_ms.push_back(1e3 * s);
  if (!prefill_ms.empty()) record.set_timing("prefill", {.ms = prefill_ms});
  if (way.stats) record.group("spec") = spec_json(point, way);
  const Summary tpot = summarize(way.tpot_ms), itl = summarize(way.itl_ms);
  record.group("latency") = {{"tpot_ms", tpot.mean},
                             {"tpot_ms_p50", tpot.p50},
                             {"tpot_ms_p99", tpot.p99},
                             {"itl_ms", {{"p50", itl.p50}, {"p90", itl.p90}, {"p99", itl.p99}}}};
  const double new_tokens = new_tokens_of(way);
  Json& throughput = record.group("throughput");
  throughput = {
      {"decode_tok_s", point.batch / way.token_s()},
      {"decode_tok_s_user", 1 / way.token_s()},
      {"decode_tok_s_to_end", (new_tokens - way.sequences) / sum_of(way, &BatchRun::decode_s)}};
  if (point.prefill_s.empty()) return;
  const double prefill_s = std::accumulate(point.prefill_s.begin(), point.prefill_s.end(), 0.0) +
                           sum_of(way, &BatchRun::prefill_s);
  std::vector<double> first_ms, whole_ms;  // by batch: until its first tokens, and its last
  for (size_t b = 0; b < way.batches.size(); ++b) {
    first_ms.push_back(1e3 * (point.prefill_s[b] + way.batches[b].prefill_s));
    whole_ms.push_back(first_ms.back() + 1e3 * way.batches[b].decode_s);
  }
  record.group("latency")["ttft_ms"] = median(first_ms);
  record.group("latency")["e2e_ms"] = median(whole_ms);
  throughput["prefill_tok_s"] = way.sequences * prompt_tokens / prefill_s;
  throughput["end_to_end_tok_s"] = new_tokens / end_to_end_s(way, point.prefill_s);
}

}  // namespace tandem::bench
