// The part of pig-eval that asks sets of questions.
#include <algorithm>
#include <set>

#include "tools/pig_eval.h"

namespace tandem::tools {
namespace {

// Questions in one go, over those that run at once: a sequence that ends makes room for the next,
// and what an interruption costs stays small.
constexpr size_t kGroupsAtOnce = 4;

int tokens_of(eval::AnswerSet set, const eval::Question& question) {
  return static_cast<int>(question.prompt.size()) + eval::facts_of(set).max_tokens;
}

}  // namespace

void PigEval::read_sets() {
  const eval::Settings& s = recipe_.eval;
  if (s.answer_sets().empty()) return;
  const decode::ModelFiles files = sizer_.open_model();
  const auto encoder = eval::prompt_encoder(s.sets, tokenizer_of(files), files.folder);
  for (const eval::AnswerSet set : s.answer_sets()) {
    sets_.push_back({set, eval::read_questions(s.sets, set, encoder,
                                               static_cast<uint64_t>(recipe_.run.seed), s.cases)});
    check_lengths(sets_.back());
  }
}

void PigEval::check_lengths(const AskedSet& asked) const {
  const int context = text_context();
  const eval::Question* longest = nullptr;
  int n_long = 0;
  for (const eval::Question& question : asked.questions) {
    if (tokens_of(asked.set, question) <= context) continue;
    ++n_long;
    if (longest == nullptr || question.prompt.size() > longest->prompt.size()) longest = &question;
  }
  if (longest == nullptr) return;
  const auto file = eval::set_file(recipe_.eval.sets.path, asked.set);
  throw input_error(eval::record_name(file, longest->record),
                    "the prompt has {} tokens and its answer {}, but the context of {} is {}; {} "
                    "of {} questions of {} do not fit",
                    longest->prompt.size(), eval::facts_of(asked.set).max_tokens, config_.name,
                    context, n_long, asked.questions.size(), eval::name_of(asked.set))
      .hint("raise run.context, choose a model that reads longer texts, or leave the task out");
}

void PigEval::check_answers() const {
  for (const eval::AnswerRecord& answered : log_.answers) {
    const auto asked = std::ranges::find(sets_, answered.set, &AskedSet::set);
    if (asked == sets_.end()) continue;  // never of a log of the same recipe
    const auto question =
        std::ranges::find(asked->questions, answered.record, &eval::Question::record);
    if (question != asked->questions.end() && question->answer == answered.answer) continue;
    const auto file = eval::set_file(recipe_.eval.sets.path, answered.set);
    throw input_error(eval::record_name(file, answered.record),
                      "differs from the question that {} has an answer to",
                      recipe_.output.path.string())
        .hint("the set was changed later: restore the earlier file, or begin a new log");
  }
}

eval::PolicyEngines::SpecOf PigEval::set_spec(int longest, int group) const {
  return [this, longest, group](const auto& policies) {
    return eval::answer_engine_spec(policies, sizer_.compute(),
                                    static_cast<int>(recipe_.run.prefill_chunk), longest, group,
                                    config_.vocab_size);
  };
}

void PigEval::run_sets() {
  std::set<std::pair<eval::AnswerSet, int64_t>> done;
  for (const eval::AnswerRecord& r : log_.answers) done.insert({r.set, r.record});
  size_t total = 0;
  int longest = 0;
  for (AskedSet& asked : sets_) {
    std::erase_if(asked.questions, [&](const auto& q) {
      return done.contains({asked.set, q.record});
    });
    total += asked.questions.size();
    for (const eval::Question& question : asked.questions)
      longest = std::max(longest, tokens_of(asked.set, question));
  }
  if (total == 0) return;

  const int group =
      group_size(sizer_.open_model(), static_cast<int>(std::min<size_t>(total, INT32_MAX)),
                 [&](int n) { return set_spec(longest, n); });
  const auto engines = load(set_spec(longest, group), group);
  if (!engines) return;
  cli::Progress progress(cx_.terminal, "questions", static_cast<double>(total), "cases");
  size_t n_done = 0;
  for (const AskedSet& asked : sets_) {
    const size_t n = asked.questions.size(), at_once = static_cast<size_t>(group) * kGroupsAtOnce;
    for (size_t begin = 0; begin < n; begin += at_once) {
      if (cli::is_interrupted()) return;
      const auto part = std::span(asked.questions).subspan(begin, std::min(at_once, n - begin));
      ask(engines->panel(), asked.set, part);
      n_done += part.size();
      progress.update(static_cast<double>(n_done));
    }
  }
}

void PigEval::ask(const eval::Panel& panel, eval::AnswerSet set,
                  std::span<const eval::Question> questions) {
  auto answers = eval::answer_questions(panel, set, questions, corrections());
  for (size_t i = 0; i < questions.size(); ++i) {
    log_.answers.push_back({set, questions[i].record, questions[i].answer, std::move(answers[i])});
    if (file_) file_->write(eval::answer_line(log_.answers.back(), names_));
  }
}

}  // namespace tandem::tools
