#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "decode/model_files.h"
#include "eval/tasks.h"
#include "recipe/fields.h"
#include "recipe/scalar.h"

namespace tandem::eval {

/// An item of eval.tasks: the name of a built-in task, or a JSONL file of questions.
struct TaskName {
  std::string value;

  TaskName() = default;
  TaskName(std::string text) : value(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  TaskName(const char* text) : value(text) {}             // NOLINT(google-explicit-constructor)
  bool operator==(const TaskName&) const = default;
  auto operator<=>(const TaskName&) const = default;

  /// A name with a slash, or one that ends in .jsonl.
  bool is_file() const;
  /// Its name in tables; a file's has neither folder nor ending.
  std::string shown() const;
};
std::string read_item(const recipe::Node& node, const recipe::Folders& folders, TaskName& out);
inline std::string yaml_text(const TaskName& task) { return recipe::yaml_text(task.value); }
inline std::string type_name(const TaskName&) { return "task"; }
nlohmann::json json_of(const TaskName& task);

/// Where an accepted answer stands in the text that a model writes.
enum class Match : uint8_t { start, contains };
constexpr std::array<std::string_view, 2> enum_names(Match) { return {"start", "contains"}; }

/// Section `own`: how text answers to the questions of JSONL files are judged.
struct OwnSettings {
  Match match = Match::start;
  int max_tokens = 0;

  template <class V>
  void fields(V& v) {
    v("match", match,
      "place of an accepted answer in the text: start (at its beginning) or contains (anywhere)");
    v("max_tokens", max_tokens, recipe::at_least(0).unit("tokens"),
      "longest answer. 0 = 8 more than the file's longest accepted answer, or 64 more with match: "
      "contains");
  }
};

/// True if a text begins with the answer, or contains it, as whole words or numbers. Case (A to Z)
/// and the amount of white space do not count; "12" is not found in "123", "1.12" or "-12".
bool has_answer(Match match, std::string_view text, std::string_view answer);

/// A question of a JSONL file.
struct OwnQuestion {
  std::string where;                 // FILE:LINE
  int64_t record = 0;                // of the file, from 1
  std::string id;                    // JSON of the line's id; empty without one
  Ids prompt;                        // read densely
  Ids question;                      // after it; by protocol sparse read under the policy
  std::vector<std::string> answers;  // accepted texts; of choices the right one
  std::vector<Ids> choices;          // empty: the model writes a text
  std::vector<size_t> choice_bytes;  // of each choice's text, without the space in front
  size_t right = 0;                  // choice

  /// Tokens of prompt, question, and the longest choice.
  size_t n_tokens() const;
  /// Differs where prompt, choices or answers differ; 16 hex digits.
  std::string fingerprint() const;
};

/// The questions of a file, some of them if eval.cases is smaller.
struct OwnTask {
  TaskName name;
  std::vector<OwnQuestion> questions;
  size_t n_lines = 0;  // questions in the file
  int max_tokens = 0;  // of a text answer; 0 with choices

  bool has_choices() const { return !questions.front().choices.empty(); }
};

/// Reads a JSONL file of questions: {"prompt": "text", "answer": "text"}. In place of prompt a line
/// may have ids or messages (decode::parse_prompt), and "question", text that follows the prompt.
/// `answer` is a text, a number or a list of accepted ones; with "choices", a list of texts, it is
/// the right one or its index from 0. One space separates a choice from the text before it, unless
/// there is white space; none follows ids and messages. "id" is repeated in the log. Other keys are
/// ignored, unless they are nearly one of these that the line lacks.
/// n        most questions; they are drawn for `seed`, as of sets
/// errors   kind input at FILE:LINE: what keeps a line from being such a question, or lines with
///          choices next to lines without; FILE: not there, no line; those of decode::parse_prompt
OwnTask read_own_task(const OwnSettings& settings, const TaskName& name,
                      const decode::ModelFiles& files, uint64_t seed, int n);

}  // namespace tandem::eval
