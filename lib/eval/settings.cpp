#include "eval/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "kv/policy.h"
#include "recipe/fields_of.h"
#include "recipe/value_of.h"

namespace tandem::eval {
namespace {

constexpr std::string_view kPerplexity = "perplexity";
constexpr std::string_view kAttention = "attention";
constexpr std::string_view kChannels = "channels";
constexpr std::string_view kFull = "full";  // always judged, under this name

std::optional<Task> find_task(std::string_view name) {
  constexpr auto names = enum_names(Task{});
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Task>(found - names.begin());
}

/// The sets that a task of this name asks: one, or a group's; none for other tasks.
std::vector<AnswerSet> sets_named(std::string_view name) {
  for (const SetGroup group : {SetGroup::commonsense, SetGroup::arithmetic})
    if (name == name_of(group)) return sets_of(group);
  if (const auto set = find_set(name)) return {*set};
  return {};
}

template <class T>
bool has_repeats(std::vector<T> list) {
  std::ranges::sort(list);
  return std::ranges::adjacent_find(list) != list.end();
}

std::vector<std::string> names_of(const std::vector<NamedPolicy>& policies) {
  std::vector<std::string> names;
  for (const NamedPolicy& policy : policies) names.push_back(policy.name);
  return names;
}

}  // namespace

void Settings::check_tasks(recipe::Problems& p) const {
  std::vector<std::string_view> known;
  for (const std::string_view name : enum_names(Task{})) known.push_back(name);
  known.insert(known.end(), {kPerplexity, kAttention, kChannels, name_of(SetGroup::commonsense),
                             name_of(SetGroup::arithmetic)});
  for (const std::string_view name : enum_names(AnswerSet{})) known.push_back(name);
  if (tasks.empty())
    p.field("tasks", "eval.tasks: expected at least one of {}, found none", fmt::join(known, ", "));
  std::vector<std::string> names;
  for (const TaskName& task : tasks) {
    const std::string name = task.shown();
    const bool is_known = std::ranges::find(known, name) != known.end();
    names.push_back(name);
    if (!task.is_file() && !is_known) {
      p.field(
          "tasks",
          "eval.tasks: unknown task '{}'; expected one of {}, or a file of questions NAME.jsonl",
          name, fmt::join(known, ", "));
      p.hint(recipe::did_you_mean(name, known));
    } else if (task.is_file() && (is_known || name == "mean")) {
      p.field("tasks", "eval.tasks: {} has the name of a built-in task: rename the file",
              task.value);
    }
  }
  if (has_repeats(names) || has_repeats(answer_sets()))
    p.field("tasks", "eval.tasks: expected each task once, found one twice");
}

void Settings::check(recipe::Problems& p) const {
  check_tasks(p);
  if (lengths.empty() && !questions().empty())
    p.field("lengths", "eval.lengths: expected at least one length, found none");
  if (protocols.empty())
    p.field("protocols", "eval.protocols: expected dense, sparse or both, found none");
  if (scores.empty())
    p.field("scores", "eval.scores: expected forced, generated or both, found none");
  std::vector<int64_t> counts;
  for (const recipe::TokenCount length : lengths) counts.push_back(length.value);
  const auto names = names_of(policies);
  if (has_repeats(counts))
    p.field("lengths", "eval.lengths: expected each length once, found one twice");
  if (has_repeats(protocols))
    p.field("protocols", "eval.protocols: expected each protocol once, found one twice");
  if (has_repeats(scores))
    p.field("scores", "eval.scores: expected each score once, found one twice");
  if (has_repeats(names))
    p.field("policies", "eval.policies: expected each name once, found one twice");
  if (const auto full = std::ranges::find(names, kFull); full != names.end()) {
    p.field(fmt::format("policies.{}", full - names.begin()),
            "eval.policies: '{}' is the name of full attention, which is always judged", kFull);
    p.hint("leave it out, or rename it if it is another policy");
  }
  if (calibrates() && neurons.path.empty())
    p.field("neurons", "eval.neurons.path: the task channels needs a file to write; set it");
  if (!answer_sets().empty() && sets.path.empty())
    p.field("sets.path",
            "eval.sets.path: expected the folder of LLM-Adapters' sets (boolq/test.json, "
            "AddSub/test.json, ...) for task {}",
            name_of(answer_sets().front()));
  if (attention() && policies.empty())
    p.field("policies",
            "eval.policies: the task attention needs at least one policy to compare with full "
            "attention");
  for (const NamedPolicy& policy : policies) {
    if (policy.has_weights() && attention())
      p.field("policies",
              "eval.policies: '{}' has other weights, but the task attention compares policies of "
              "one model: leave its weights out, or leave out the task",
              policy.name);
    if (policy.has_weights() && policy.spec.any())
      p.field("policies",
              "eval.policies: '{}' has spec and other weights, but the full model must correct it: "
              "leave one out",
              policy.name);
    const bool learns = policy.sparse.kind == recipe::SparseKind::griffin || policy.sparse.weighted;
    if (learns && perplexity() && scored == 0)
      p.field("scored",
              "eval.scored: '{}' chooses its channels by a prompt, which perplexity has only with "
              "scored tokens: set eval.scored",
              policy.name);
    if (policy.spec.any())
      check_corrected(policy, p);
    else if (policy.spec != Correction{})
      p.field("policies",
              "eval.policies: '{}' has spec without gamma, so the full model never corrects it: "
              "set gamma, the tokens to draft before each correction",
              policy.name);
    if (policy.cache.is_quantized() && attention())
      p.field("policies",
              "eval.policies: '{}' has dtype {}, which the task attention does not support: leave "
              "one of them out",
              policy.name, recipe::yaml_text(policy.cache.dtype));
    if (policy.sparse.any() && attention())
      p.field("policies",
              "eval.policies: '{}' has sparse, which the task attention does not support: leave "
              "one of them out",
              policy.name);
  }
  for (const NamedPolicy& policy : policies) {
    const kv::Needs needs = kv::needs_of(policy.cache);
    if (needs.scores)
      p.field("policies",
              "eval.policies: '{}' is of kind {}, which is only for drafts: measure it with "
              "spec.draft self",
              policy.name, needs.kind);
    else if (needs.rounds)
      p.field("policies",
              "eval.policies: '{}' rebuilds by acceptance, which needs speculation: set "
              "retrieval.rebuild never, or a number of tokens",
              policy.name);
  }
}

void Settings::check_corrected(const NamedPolicy& policy, recipe::Problems& p) const {
  if (!policy.sparse.any() || policy.cache.is_hosted())
    p.field("policies",
            "eval.policies: '{}' has spec, which needs sparse and a KV cache on the model's "
            "device: set sparse, leave out place host",
            policy.name);
  if (speculate::weighs_draws(policy.spec.verify))
    p.field("policies",
            "eval.policies: '{}' verifies by {}, which needs sampling, but answers are greedy: set "
            "match, floor, floor_or_argmax or typical",
            policy.name, recipe::yaml_text(policy.spec.verify));
  const bool forces = !questions().empty() && scores != std::vector{ProseScore::generated};
  const bool sparse =
      protocols != std::vector{Protocol::dense} && !(questions().empty() && own_tasks().empty());
  if (forces || sparse || perplexity() || attention())
    p.field("policies",
            "eval.policies: '{}' has spec, which needs eval.scores [generated] and eval.protocols "
            "[dense], without the tasks perplexity and attention: set these",
            policy.name);
}

std::vector<Task> Settings::questions() const {
  std::vector<Task> list;
  for (const TaskName& name : tasks)
    if (const auto task = find_task(name.value)) list.push_back(*task);
  return list;
}

std::vector<AnswerSet> Settings::answer_sets() const {
  std::vector<AnswerSet> list;
  for (const TaskName& name : tasks)
    for (const AnswerSet set : sets_named(name.value)) list.push_back(set);
  return list;
}

std::vector<TaskName> Settings::own_tasks() const {
  std::vector<TaskName> list;
  std::ranges::copy_if(tasks, std::back_inserter(list), &TaskName::is_file);
  return list;
}

std::vector<Score> Settings::prose_scores() const {
  std::vector<Score> list;
  for (const ProseScore score : scores) list.push_back(static_cast<Score>(score));
  return list;
}

bool Settings::perplexity() const {
  return std::ranges::find(tasks, kPerplexity, &TaskName::value) != tasks.end();
}

bool Settings::attention() const {
  return std::ranges::find(tasks, kAttention, &TaskName::value) != tasks.end();
}

bool Settings::calibrates() const {
  return std::ranges::find(tasks, kChannels, &TaskName::value) != tasks.end();
}

std::vector<NamedPolicy> Settings::all_policies() const {
  std::vector<NamedPolicy> list = {{std::string(kFull), {}}};
  list.insert(list.end(), policies.begin(), policies.end());
  return list;
}

}  // namespace tandem::eval

template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::eval::NamedPolicy>&);
template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::eval::Protocol>&);
template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::eval::ProseScore>&);
template std::unique_ptr<tandem::recipe::Value> tandem::recipe::value_of(
    std::vector<tandem::eval::TaskName>&);
