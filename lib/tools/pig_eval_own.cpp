// The part of pig-eval that asks the questions of files.
#include <algorithm>
#include <set>

#include "eval/own_answers.h"
#include "tools/pig_eval.h"

namespace tandem::tools {
namespace {

int asked_tokens(const eval::OwnTask& task, const eval::OwnQuestion& question) {
  return static_cast<int>(question.n_tokens()) + task.max_tokens;
}

}  // namespace

void PigEval::read_own() {
  const eval::Settings& s = recipe_.eval;
  if (s.own_tasks().empty()) return;
  const decode::ModelFiles files = sizer_.open_model();
  tokenizer_of(files);
  for (const eval::TaskName& name : s.own_tasks()) {
    own_.push_back(eval::read_own_task(s.custom, name, files,
                                       static_cast<uint64_t>(recipe_.run.seed), s.cases));
    const eval::OwnTask& task = own_.back();
    if (task.has_choices())
      for (const eval::NamedPolicy& policy : policies_)
        if (policy.spec.any())
          throw recipe_error("eval.policies",
                             "'{}' has spec, which does not support choices, but {} has choices",
                             policy.name, name.value)
              .hint("leave spec out, or use questions without choices");
    const int context = text_context();
    const auto longest = std::ranges::max_element(
        task.questions, {}, [&](const auto& q) { return asked_tokens(task, q); });
    const auto n_long = std::ranges::count_if(
        task.questions, [&](const auto& q) { return asked_tokens(task, q) > context; });
    if (n_long > 0)
      throw input_error(longest->where,
                        "the question has {} tokens with its answer, but the context of {} is {}; "
                        "{} of {} questions do not fit",
                        asked_tokens(task, *longest), config_.name, context, n_long,
                        task.questions.size())
          .hint(
              "raise run.context, shorten the prompts, or choose a model that reads longer texts");
    if (task.n_lines > task.questions.size())
      cx_.note(fmt::format("{}: {} of {} questions, drawn by run.seed (all: -s eval.cases={})",
                           name.value, task.questions.size(), task.n_lines, task.n_lines));
  }
}

void PigEval::check_own() const {
  for (const eval::OwnRecord& judged : log_.own) {
    const auto task =
        std::ranges::find(own_, judged.task, [](const eval::OwnTask& t) { return t.name.shown(); });
    const auto question =
        std::ranges::find(task->questions, judged.record, &eval::OwnQuestion::record);
    if (question != task->questions.end() && question->fingerprint() == judged.fingerprint)
      continue;
    throw input_error(fmt::format("{}: record {}", task->name.value, judged.record),
                      "differs from the question that {} has an answer to",
                      recipe_.output.path.string())
        .hint("the file was changed later: restore the earlier file, or begin a new log");
  }
}

void PigEval::run_own() {
  using Key = std::pair<std::string, int64_t>;
  const eval::Settings& s = recipe_.eval;
  std::set<Key> done;
  for (const eval::OwnRecord& r : log_.own) done.insert({r.task, r.record});
  for (const eval::OwnTask& task : own_) {
    std::vector<eval::OwnQuestion> missing;
    int most = 0, tail = 0;
    for (const eval::OwnQuestion& q : task.questions) {
      if (done.contains({task.name.shown(), q.record})) continue;
      missing.push_back(q);
      most = std::max(most, asked_tokens(task, q));
      tail = std::max(tail, asked_tokens(task, q) - static_cast<int>(q.prompt.size()));
    }
    if (missing.empty()) continue;
    const auto spec_of = [&](int group) {
      return [&, group](const auto& policies) {
        return eval::case_engine_spec(policies, sizer_.compute(),
                                      static_cast<int>(recipe_.run.prefill_chunk), most, group,
                                      config_.vocab_size, tail);
      };
    };
    const int group = group_size(sizer_.open_model(), static_cast<int>(missing.size()), spec_of);
    const auto engines = load(spec_of(group), group);
    if (!engines) continue;
    cli::Progress progress(cx_.terminal, task.name.shown(), static_cast<double>(missing.size()),
                           "cases");
    const eval::OwnSpec how{.protocols = s.protocols,
                            .corrections = corrections(),
                            .match = s.custom.match,
                            .max_tokens = task.max_tokens};
    for (size_t begin = 0; begin < missing.size(); begin += static_cast<size_t>(group)) {
      if (cli::is_interrupted()) return;
      const auto part = std::span(missing).subspan(
          begin, std::min(static_cast<size_t>(group), missing.size() - begin));
      auto outcomes = eval::answer_own(engines->panel(), part, how);
      for (size_t i = 0; i < part.size(); ++i) {
        log_.own.push_back({.task = task.name.shown(),
                            .record = part[i].record,
                            .id = part[i].id,
                            .fingerprint = part[i].fingerprint(),
                            .outcomes = std::move(outcomes[i])});
        if (file_) file_->write(eval::own_line(log_.own.back(), names_));
      }
      progress.update(static_cast<double>(begin + part.size()));
    }
  }
}

}  // namespace tandem::tools
