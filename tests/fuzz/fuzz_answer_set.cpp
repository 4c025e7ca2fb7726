// Sets of questions, as pig-eval reads them, and the rules that find answers in texts.
#include "eval/answer_sets.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  using eval::AnswerSet;
  return fuzz::run(ErrorKind::input, [&] {
    const std::string_view bytes = fuzz::as_text(data, size);
    for (size_t i = 0; i < enum_names(AnswerSet{}).size(); ++i) {
      const auto set = static_cast<AnswerSet>(i);
      const auto found = eval::extract_answer(set, bytes);
      if (found && found->empty()) throw std::logic_error("an empty answer");
      if (found && eval::facts_of(set).form != eval::AnswerForm::number &&
          !eval::is_correct(set, found, *found))
        throw std::logic_error("an answer that is not itself");
    }
    // What one set refuses may be another's.
    int n_read = 0;
    const auto read = [&](AnswerSet set) {
      for (const eval::SetRecord& record : eval::parse_set(bytes, set, "fuzz"))
        if (!eval::answer_problem(set, record.answer).empty())
          throw std::logic_error("a set with an answer that it cannot have");
      ++n_read;
    };
    for (const AnswerSet set : {AnswerSet::boolq, AnswerSet::aqua, AnswerSet::gsm8k}) {
      try {
        read(set);
      } catch (const Error&) {
        if (set == AnswerSet::gsm8k && n_read == 0) throw;
      }
    }
  });
}
