#include "eval/case_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "eval/figures_json.h"
#include "io/file.h"
#include "io/json.h"
#include "io/jsonl.h"

namespace tandem::eval {
namespace {

using io::Json;

constexpr const char* kSchema = "tandem.eval/1";

template <class E>
std::string name_of(E value) {
  return std::string(enum_names(value)[static_cast<size_t>(value)]);
}

template <class E>
E value_of(const std::string& name, const std::string& where) {
  constexpr auto names = enum_names(E{});
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw input_error(where, "expected one of {}, found '{}'", fmt::join(names, ", "), name);
  return static_cast<E>(found - names.begin());
}

int policy_of(const std::string& name, const std::vector<std::string>& names,
              const std::string& where) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw input_error(where, "the recipe has no policy '{}'", name);
  return static_cast<int>(found - names.begin());
}

Json estimate_json(const Estimate& e) {
  Json json = {{"mean", e.mean}};
  if (e.stderr_) json["stderr"] = *e.stderr_;
  return json;
}

Estimate read_estimate(const Json& object, const char* key, const std::string& where) {
  const Json& json = io::get_object(object, key, where);
  Estimate e{.mean = io::get_double(json, "mean", where), .stderr_ = {}};
  if (json.contains("stderr")) e.stderr_ = io::get_double(json, "stderr", where);
  return e;
}

TextQuality read_quality(const Json& json, bool is_reference, const std::string& where) {
  TextQuality q;
  q.n_tokens = io::get_int(json, "n_tokens", where, 1);
  q.nll = read_estimate(json, "nll", where);
  q.ppl = read_estimate(json, "ppl", where);
  if (is_reference) return q;
  q.nll_difference = read_estimate(json, "nll_difference", where);
  q.kl.mean = io::get_double(json, "kl_mean", where);
  if (json.contains("kl_stderr")) q.kl.stderr_ = io::get_double(json, "kl_stderr", where);
  q.kl_p99 = io::get_double(json, "kl_p99", where);
  q.top1_agree = io::get_double(json, "top1_agree", where);
  return q;
}

/// Counts of a query head, by their names in logs and records.
constexpr std::pair<const char*, double AttentionQuality::*> kCounts[] = {
    {"visible", &AttentionQuality::visible},
    {"selected", &AttentionQuality::selected},
    {"exact", &AttentionQuality::exact},
    {"fixed", &AttentionQuality::fixed},
    {"index_bytes", &AttentionQuality::index_bytes},
    {"key_bytes", &AttentionQuality::key_bytes}};

AttentionQuality read_attention(const Json& json, const std::string& where) {
  AttentionQuality a;
  a.n_queries = io::get_int(json, "n_queries", where, 0);
  if (a.n_queries == 0) return a;
  a.error = read_estimate(json, "error", where);
  a.lse_error = read_estimate(json, "lse_error", where);
  if (json.contains("ranking_loss")) a.ranking_loss = read_estimate(json, "ranking_loss", where);
  for (const auto& [name, count] : kCounts) a.*count = io::get_double(json, name, where);
  return a;
}

/// Calls `visit(policy, protocol, score, value)` for each value of `object`.
template <class Visit>
void for_each_outcome(const Json& object, const std::vector<std::string>& names,
                      const std::string& where, const Visit& visit) {
  for (const auto& [policy, by_protocol] : object.items())
    for (const auto& [protocol, by_score] : by_protocol.items())
      for (const auto& [score, value] : by_score.items())
        visit(policy_of(policy, names, where), value_of<Protocol>(protocol, where),
              value_of<Score>(score, where), value);
}

std::vector<Outcome> read_outcomes(const Json& json, const std::vector<std::string>& names,
                                   const std::string& where) {
  std::vector<Outcome> outcomes;
  for_each_outcome(io::get_object(json, "correct", where), names, where,
                   [&](int policy, Protocol protocol, Score score, const Json& correct) {
                     if (!correct.is_boolean())
                       throw input_error(where, "expected true or false, found {}",
                                         io::describe(correct));
                     outcomes.push_back({policy, protocol, score, correct.get<bool>()});
                   });
  const auto outcome_of = [&](int policy, Protocol protocol, Score score) -> Outcome& {
    const auto found = std::ranges::find_if(outcomes, [&](const Outcome& o) {
      return o.policy == policy && o.protocol == protocol && o.score == score;
    });
    if (found == outcomes.end())
      throw input_error(where, "expected only outcomes that this run judges, found another");
    return *found;
  };
  if (json.contains("rounds"))
    for_each_outcome(io::get_object(json, "rounds", where), names, where,
                     [&](int policy, Protocol protocol, Score score, const Json& rounds) {
                       outcome_of(policy, protocol, score).rounds = read_rounds(rounds, where);
                     });
  if (!json.contains("reads")) return outcomes;  // written before reads were counted
  for_each_outcome(io::get_object(json, "reads", where), names, where,
                   [&](int policy, Protocol protocol, Score score, const Json& reads) {
                     outcome_of(policy, protocol, score).reads = read_reads(reads, where);
                   });
  return outcomes;
}

constexpr const char* kJudgeAgain = "remove the line: --resume judges the missing cases";

/// Every policy's answer is there.
/// name   of the case
void check_judged(const std::vector<Outcome>& outcomes, const std::string& name,
                  const std::vector<Protocol>& protocols, const std::vector<Score>& scores,
                  const std::vector<std::string>& names, const std::string& where) {
  for (size_t policy = 0; policy < names.size(); ++policy)
    for (const Protocol protocol : protocols)
      for (const Score score : scores)
        if (std::ranges::none_of(outcomes, [&](const Outcome& o) {
              return o.policy == static_cast<int>(policy) && o.protocol == protocol &&
                     o.score == score;
            }))
          throw input_error(where, "{} lacks an answer for policy '{}', protocol {}, score {}",
                            name, names[policy], name_of(protocol), name_of(score))
              .hint(kJudgeAgain);
}

CaseRecord read_case(const Json& json, const std::vector<std::string>& names,
                     const std::string& where) {
  return {.task = value_of<Task>(io::get_string(json, "task", where), where),
          .length = io::get_int(json, "length", where, 1),
          .index = static_cast<int>(io::get_int(json, "case", where, 0, INT32_MAX)),
          .outcomes = read_outcomes(json, names, where)};
}

OwnRecord read_own(const Json& json, const Settings& settings,
                   const std::vector<std::string>& names, const std::string& where) {
  OwnRecord record{.task = io::get_string(json, "task", where),
                   .record = io::get_int(json, "record", where, 1),
                   .fingerprint = io::get_string(json, "question", where),
                   .outcomes = read_outcomes(json, names, where)};
  const bool has_text = std::ranges::any_of(
      record.outcomes, [](const Outcome& o) { return o.score == Score::generated; });
  check_judged(record.outcomes, fmt::format("record {} of {}", record.record, record.task),
               settings.protocols,
               has_text ? std::vector{Score::generated} : std::vector{Score::acc, Score::acc_norm},
               names, where);
  return record;
}

/// A case is one of the recipe's, and every policy's answer to it is there.
void check_case(const CaseRecord& record, const Settings& settings,
                const std::vector<std::string>& names, const std::string& where) {
  const std::string name =
      fmt::format("case {} of {} at {} tokens", record.index, name_of(record.task), record.length);
  const std::vector<Task> tasks = settings.questions();
  const bool is_asked =
      std::ranges::find(tasks, record.task) != tasks.end() && record.index < settings.cases &&
      std::ranges::find(settings.lengths, record.length, &recipe::TokenCount::value) !=
          settings.lengths.end();
  if (!is_asked) throw input_error(where, "{} is not in the recipe", name).hint(kJudgeAgain);
  check_judged(record.outcomes, name, settings.protocols, settings.prose_scores(), names, where);
}

/// The lines about each subject, of which a log has one.
class Subjects {
 public:
  /// Whether the line is the first about its subject; the same line again counts once.
  /// errors   kind input at `where`: another line says otherwise
  bool take(const Json& line, const std::string& where) {
    std::string subject;
    for (const char* key : {"task", "length", "case", "record"})
      if (const auto it = line.find(key); it != line.end()) subject += it->dump() + " ";
    const auto [first, is_new] = first_.try_emplace(std::move(subject), line, where);
    if (!is_new && first->second.first != line)
      throw input_error(where, "contradicts {}, which is for the same case", first->second.second)
          .hint("remove one line or both: --resume judges the missing cases");
    return is_new;
  }

 private:
  std::map<std::string, std::pair<Json, std::string>> first_;
};

/// Keys whose values differ, except those that a hash leaves out.
std::vector<std::string> differing_keys(const Json& a, const Json& b) {
  const Json left = a.flatten(), right = b.flatten();
  std::vector<std::string> keys;
  const auto note = [&](std::string key) {
    std::ranges::replace(key, '/', '.');
    key.erase(0, 1);
    if (key.starts_with("output.") || key == "run.threads" || key == "run.device") return;
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  };
  for (const auto& [key, value] : left.items())
    if (!right.contains(key) || right[key] != value) note(key);
  for (const auto& [key, value] : right.items())
    if (!left.contains(key)) note(key);
  return keys;
}

void check_header(const Json& header, const Json& recipe, const std::string& where,
                  const std::function<Json(const Json&)>& upgraded) {
  const auto schema = header.find("schema");
  if (schema == header.end() || *schema != kSchema)
    throw input_error(where, "expected a log of pig-eval")
        .hint("with --resume, name a file that an earlier run wrote with -o");
  const Json& written = io::get_object(header, "recipe", where);
  const Json theirs = upgraded ? upgraded(written) : written;
  if (io::get_string(theirs, "sha256", where) == recipe.at("sha256").get<std::string>()) return;
  const auto keys = differing_keys(io::get_object(theirs, "effective", where), recipe["effective"]);
  throw recipe_error(where, "was written with another recipe; keys that differ: {}",
                     fmt::join(keys, ", "))
      .hint("resume with the same recipe, or choose another output file");
}

}  // namespace

std::string header_line(const Json& recipe, const std::string& device) {
  return io::jsonl_line({{"schema", kSchema}, {"recipe", recipe}, {"run_device", device}});
}

namespace {

/// Groups of a line: verdicts and figures by policy, protocol and score.
Json outcomes_json(const std::vector<Outcome>& outcomes, const std::vector<std::string>& names) {
  Json correct = Json::object(), reads = Json::object(), rounds = Json::object();
  for (const Outcome& o : outcomes) {
    const std::string& policy = names[static_cast<size_t>(o.policy)];
    correct[policy][name_of(o.protocol)][name_of(o.score)] = o.correct;
    if (o.reads) reads[policy][name_of(o.protocol)][name_of(o.score)] = reads_json(*o.reads);
    if (o.rounds) rounds[policy][name_of(o.protocol)][name_of(o.score)] = rounds_json(*o.rounds);
  }
  Json groups = {{"correct", correct}, {"reads", reads}};
  if (!rounds.empty()) groups["rounds"] = rounds;
  return groups;
}

}  // namespace

std::string case_line(const CaseRecord& record, const std::vector<std::string>& names) {
  Json line = {{"task", name_of(record.task)}, {"length", record.length}, {"case", record.index}};
  line.update(outcomes_json(record.outcomes, names));
  return io::jsonl_line(line);
}

std::string own_line(const OwnRecord& record, const std::vector<std::string>& names) {
  Json line = {{"task", record.task}, {"record", record.record}, {"question", record.fingerprint}};
  if (!record.id.empty()) line["id"] = Json::parse(record.id);
  line.update(outcomes_json(record.outcomes, names));
  for (const Outcome& o : record.outcomes) {
    const std::string& policy = names[static_cast<size_t>(o.policy)];
    if (o.score == Score::generated) line["texts"][policy][name_of(o.protocol)] = o.text;
    if (o.score == Score::acc) line["logprobs"][policy][name_of(o.protocol)] = o.logprobs;
  }
  return io::jsonl_line(line);
}

Json quality_json(const TextQuality& q, bool is_reference) {
  Json json = {
      {"n_tokens", q.n_tokens}, {"nll", estimate_json(q.nll)}, {"ppl", estimate_json(q.ppl)}};
  if (is_reference) return json;
  json["nll_difference"] = estimate_json(q.nll_difference);
  json["kl_mean"] = q.kl.mean;
  if (q.kl.stderr_) json["kl_stderr"] = *q.kl.stderr_;
  json["kl_p99"] = q.kl_p99;
  json["top1_agree"] = q.top1_agree;
  return json;
}

std::string text_line(const std::vector<TextQuality>& text, const std::vector<std::string>& names) {
  Json policies = Json::object();
  for (size_t i = 0; i < text.size(); ++i) policies[names[i]] = quality_json(text[i], i == 0);
  return io::jsonl_line({{"task", "perplexity"}, {"policies", policies}});
}

Json attention_json(const AttentionQuality& a) {
  Json json = {{"n_queries", a.n_queries}};
  if (a.n_queries == 0) return json;
  json["error"] = estimate_json(a.error);
  json["lse_error"] = estimate_json(a.lse_error);
  if (a.ranking_loss) json["ranking_loss"] = estimate_json(*a.ranking_loss);
  for (const auto& [name, count] : kCounts) json[name] = a.*count;
  return json;
}

std::string attention_line(const std::vector<AttentionQuality>& attention,
                           const std::vector<std::string>& names) {
  Json policies = Json::object();
  for (size_t i = 1; i < attention.size(); ++i) policies[names[i]] = attention_json(attention[i]);
  return io::jsonl_line({{"task", "attention"}, {"policies", policies}});
}

std::string channels_line(const MeasuredThresholds& channels) {
  const std::string file = ffn::thresholds_text(channels.thresholds);
  return io::jsonl_line({{"task", "channels"},
                         {"n_tokens", channels.n_tokens},
                         {"file", io::parse_json(file, "thresholds")}});
}

CaseLog read_log(const std::filesystem::path& path, const Json& recipe, const Settings& settings,
                 const std::vector<std::string>& names,
                 const std::function<Json(const Json&)>& upgraded) {
  const std::string bytes = io::read_own_output(path);
  CaseLog log;
  log.whole_bytes = io::whole_lines(bytes, path.string(), "{\"recipe\":{");
  bool header_seen = false;
  Subjects subjects;
  const std::vector<TaskName> own = settings.own_tasks();
  const auto take = [&](const Json& line, const std::string& where) {
    if (!header_seen) {
      check_header(line, recipe, where, upgraded);
      log.device = io::find_string(line, "run_device", where).value_or("");
      header_seen = true;
      return;
    }
    const std::string task = io::get_string(line, "task", where);
    if (!subjects.take(line, where)) {
      ++log.n_repeated;
      return;
    }
    if (task == "perplexity") {
      const Json& policies = io::get_object(line, "policies", where);
      log.text.emplace();
      for (const std::string& name : names)
        log.text->push_back(
            read_quality(io::get_object(policies, name.c_str(), where), name == names[0], where));
    } else if (task == "attention") {
      const Json& policies = io::get_object(line, "policies", where);
      log.attention.emplace(1);  // full attention is not compared to itself
      for (size_t i = 1; i < names.size(); ++i)
        log.attention->push_back(
            read_attention(io::get_object(policies, names[i].c_str(), where), where));
    } else if (task == "channels") {
      const std::string file = io::get_object(line, "file", where).dump();
      log.channels = {ffn::parse_thresholds(file, where), io::get_int(line, "n_tokens", where, 1)};
    } else if (std::ranges::find(own, task, &TaskName::shown) != own.end()) {
      log.own.push_back(read_own(line, settings, names, where));
    } else if (const auto set = find_set(task)) {
      log.answers.push_back(read_answer(line, *set, names, where));
    } else {
      log.cases.push_back(read_case(line, names, where));
      check_case(log.cases.back(), settings, names, where);
    }
  };
  io::for_each_jsonl(std::string_view(bytes).substr(0, log.whole_bytes), path.string(), take);
  if (!header_seen) log.whole_bytes = 0;
  return log;
}

}  // namespace tandem::eval
