#pragma once
#include <string>
#include <vector>

#include "eval/answering.h"
#include "io/json_fwd.h"

namespace tandem::eval {

/// A judged question of a set.
struct AnswerRecord {
  AnswerSet set = AnswerSet::boolq;
  int64_t record = 0;  // of the set's file, from 1 on
  std::string answer;  // the right one
  std::vector<SetAnswer> answers;
};

/// A line of a log: each policy's text, and the answer found in it. `names` are those of the
/// policies.
std::string answer_line(const AnswerRecord& record, const std::vector<std::string>& names);

/// errors   kind input at `where`
AnswerRecord read_answer(const io::Json& line, AnswerSet set, const std::vector<std::string>& names,
                         const std::string& where);

}  // namespace tandem::eval
