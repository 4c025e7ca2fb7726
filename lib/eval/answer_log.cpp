#include "eval/answer_log.h"

#include "eval/figures_json.h"
#include "io/json.h"
#include "io/jsonl.h"

namespace tandem::eval {
namespace {

using io::Json;

Json answer_json(const SetAnswer& answer) {
  Json json = {{"correct", answer.correct},
               {"text", answer.text},
               {"tokens", answer.n_tokens},
               {"ended", answer.ended}};
  if (answer.extracted) json["extracted"] = *answer.extracted;
  if (answer.reads) json["reads"] = reads_json(*answer.reads);
  if (answer.rounds) json["rounds"] = rounds_json(*answer.rounds);
  return json;
}

SetAnswer read_one(const Json& json, int policy, const std::string& where) {
  SetAnswer answer{.policy = policy,
                   .correct = io::get_bool(json, "correct", where),
                   .extracted = io::find_string(json, "extracted", where),
                   .text = io::get_string(json, "text", where),
                   .n_tokens = io::get_int(json, "tokens", where, 0),
                   .ended = io::get_bool(json, "ended", where)};
  if (const Json* reads = io::find_object(json, "reads", where))
    answer.reads = read_reads(*reads, where);
  if (const Json* rounds = io::find_object(json, "rounds", where))
    answer.rounds = read_rounds(*rounds, where);
  return answer;
}

}  // namespace

std::string answer_line(const AnswerRecord& record, const std::vector<std::string>& names) {
  Json policies = Json::object();
  for (const SetAnswer& answer : record.answers)
    policies[names[static_cast<size_t>(answer.policy)]] = answer_json(answer);
  return io::jsonl_line({{"task", name_of(record.set)},
                         {"record", record.record},
                         {"answer", record.answer},
                         {"policies", policies}});
}

AnswerRecord read_answer(const Json& line, AnswerSet set, const std::vector<std::string>& names,
                         const std::string& where) {
  AnswerRecord record{.set = set,
                      .record = io::get_int(line, "record", where, 1),
                      .answer = io::get_string(line, "answer", where),
                      .answers = {}};
  const Json& policies = io::get_object(line, "policies", where);
  for (size_t i = 0; i < names.size(); ++i)
    record.answers.push_back(
        read_one(io::get_object(policies, names[i].c_str(), where), static_cast<int>(i), where));
  return record;
}

}  // namespace tandem::eval
