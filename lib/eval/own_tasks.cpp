#include "eval/own_tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha256.h"
#include "decode/prompts.h"
#include "eval/answer_sets.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/quote.h"
#include "io/text_file.h"
#include "recipe/problems.h"

namespace tandem::eval {
namespace {

using io::OrderedJson;

constexpr std::string_view kFileEnd = ".jsonl";
constexpr const char* kPromptKeys[] = {"prompt", "ids", "messages"};

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_figure(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_figure(c) || (c >= 'a' && c <= 'z'); }

/// In lower case, with single spaces between words.
std::string plain_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (!is_blank(c))
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

/// True if the word or number at begin .. end-1 of a plain text is part of a longer one.
bool is_part(std::string_view text, size_t begin, size_t end) {
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : ' '; };  // -1 is beyond, too
  const auto is_point = [](char c) { return c == '.' || c == ','; };
  const char first = at(begin), last = at(end - 1), before = at(begin - 1), after = at(end);
  if ((is_word(first) && is_word(before)) || (is_word(last) && is_word(after))) return true;
  if (is_figure(last) && is_point(after) && is_figure(at(end + 1))) return true;
  if (!is_figure(first)) return false;
  return (is_point(before) && is_figure(at(begin - 2))) ||
         (before == '-' && !is_word(at(begin - 2)));  // a sign
}

bool has_prompt(const OrderedJson& line) {
  return std::ranges::any_of(kPromptKeys, [&](const char* key) { return line.contains(key); });
}

/// Refuses a key that looks like one that the line lacks. Other keys are the user's.
void check_spelling(const OrderedJson& line, const std::string& where) {
  const std::vector<std::string_view> known = {"prompt",  "ids",    "messages", "question",
                                               "choices", "answer", "tools",    "documents"};
  constexpr size_t kMore = 2;  // letters
  for (const auto& [key, value] : line.items()) {
    if (key == "id" || std::ranges::find(known, key) != known.end()) continue;
    const std::string_view near = recipe::nearest(key, known);
    const bool is_prompt = std::ranges::find(kPromptKeys, near) != std::end(kPromptKeys);
    if (near.empty() || line.contains(near) || (is_prompt && has_prompt(line))) continue;
    if (std::max(key.size(), near.size()) - std::min(key.size(), near.size()) > kMore) continue;
    throw input_error(where, "unknown key {}", io::quote(key))
        .hint(fmt::format("did you mean '{}'?", near));
  }
}

/// A text or a number; empty for others.
std::string answer_text(const OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() ? value.dump() : std::string();
}

std::vector<std::string> accepted_answers(const OrderedJson& answer, const std::string& where) {
  std::vector<std::string> accepted;
  if (answer.is_array())
    for (const OrderedJson& item : answer) accepted.push_back(answer_text(item));
  else
    accepted.push_back(answer_text(answer));
  const bool has_none =
      accepted.empty() || std::ranges::any_of(accepted, [](const std::string& text) {
        return plain_text(text).empty();
      });
  if (has_none)
    throw input_error(where,
                      "expected an answer that is a text, a number or a list of both, found {}",
                      io::describe(io::Json(answer)))
        .hint(
            "give the correct text, or a list of all correct texts: [\"Oslo\", \"the city of "
            "Oslo\"]");
  return accepted;
}

std::vector<std::string> choices_of(const OrderedJson& list, const std::string& where) {
  if (!list.is_array() || list.size() < 2)
    throw input_error(where, "expected a list of at least two texts as choices, found {}",
                      io::describe(io::Json(list)));
  std::vector<std::string> choices;
  for (size_t i = 0; i < list.size(); ++i) {
    choices.push_back(answer_text(list[i]));
    if (plain_text(choices[i]).empty())
      throw input_error(where, "expected a text as choice {}, found {}", i,
                        io::describe(io::Json(list[i])));
    const auto same = std::ranges::find(choices, choices[i]);
    if (same + 1 != choices.end())
      throw input_error(where, "choices {} and {} are the same: {}", same - choices.begin(), i,
                        io::quote(choices[i], 40));
  }
  return choices;
}

/// The choice that the answer names, by its text or else its index.
size_t right_choice(const OrderedJson& answer, const std::vector<std::string>& choices,
                    const std::string& where) {
  const auto found = std::ranges::find(choices, answer_text(answer));
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  if (answer.is_number_unsigned() && answer < choices.size()) return answer.get<size_t>();
  throw input_error(where, "the answer is {}, which is not one of the {} choices",
                    io::describe(io::Json(answer)), choices.size())
      .hint(fmt::format("give the text of the correct choice, or its index from 0 to {}",
                        choices.size() - 1));
}

/// Takes the spaces off the end of a text: they begin the choices that follow it. Returns what
/// separates these from the text.
std::string take_separator(std::string& text) {
  const size_t end = text.find_last_not_of(' ') + 1;
  std::string spaces = text.substr(end);
  text.resize(end);
  if (spaces.empty() && !text.empty() && !is_blank(text.back())) return " ";
  return spaces;
}

/// Reads the lines of a file.
class LineReader {
 public:
  explicit LineReader(const decode::ModelFiles& files) : files_(files) {}

  OwnQuestion read(const OrderedJson& line, const std::string& where) const {
    if (!line.is_object())
      throw input_error(where, "expected a question as an object, found {}",
                        io::describe(io::Json(line)))
          .hint("write {\"prompt\": \"...\", \"answer\": \"...\"}");
    check_spelling(line, where);
    if (!line.contains("answer"))
      throw input_error(where, "the key 'answer' is missing")
          .hint("add the correct text, or a list of all correct texts");
    OwnQuestion q;
    q.where = where;
    if (line.contains("id")) q.id = line["id"].dump();
    std::string separator;
    read_prompt(line, q, separator);
    if (!line.contains("choices")) {
      q.answers = accepted_answers(line["answer"], where);
      return q;
    }
    const std::vector<std::string> choices = choices_of(line["choices"], where);
    q.right = right_choice(line["answer"], choices, where);
    q.answers = {choices[q.right]};
    for (const std::string& choice : choices) {
      q.choices.push_back(
          encode_piece(*files_.tokenizer, is_blank(choice[0]) ? choice : separator + choice));
      q.choice_bytes.push_back(choice.size());
    }
    return q;
  }

 private:
  /// separator  stays empty without choices
  void read_prompt(const OrderedJson& line, OwnQuestion& q, std::string& separator) const {
    OrderedJson prompt = OrderedJson::object();
    for (const char* key : {"prompt", "ids", "messages", "tools", "documents"})
      if (line.contains(key)) prompt[key] = line[key];
    std::string question;
    if (line.contains("question")) {
      if (line.contains("messages"))
        throw input_error(q.where, "expected prompt or ids next to question, found messages")
            .hint("put the question into the last message");
      question = io::get_string(io::Json(line), "question", q.where);
      if (line.contains("choices")) separator = take_separator(question);
      if (question.empty()) throw input_error(q.where, "the question is empty");
      q.question = encode_piece(*files_.tokenizer, question);
    } else if (line.contains("choices") && line.contains("prompt") && line["prompt"].is_string()) {
      std::string text = line["prompt"].get<std::string>();
      separator = take_separator(text);
      prompt["prompt"] = text;
    }
    q.prompt = decode::parse_prompt(prompt, files_, q.where);
    if (!q.question.empty()) return;
    if (q.prompt.size() < 2)
      throw input_error(q.where, "expected a prompt of at least two tokens, found one")
          .hint("write a longer prompt");
    // Its last token is what protocol sparse has the policy read.
    q.question = {q.prompt.back()};
    q.prompt.pop_back();
  }

  const decode::ModelFiles& files_;
};

void append(std::string& bytes, const Ids& ids) {
  bytes += fmt::format("{}:", ids.size());
  bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
}

}  // namespace

bool TaskName::is_file() const {
  return value.find('/') != std::string::npos || value.ends_with(kFileEnd);
}

std::string TaskName::shown() const {
  return is_file() ? std::filesystem::path(value).stem().string() : value;
}

std::string read_item(const recipe::Node& node, const recipe::Folders&, TaskName& out) {
  std::string text;
  if (std::string problem = recipe::read_scalar(node, text); !problem.empty()) return problem;
  if (!TaskName(text).is_file()) {
    out = text;
    return {};
  }
  std::filesystem::path path;
  std::string problem = recipe::read_scalar(node, path);
  out = path.string();
  if (!out.is_file()) out.value.insert(0, "./");
  return problem;
}

nlohmann::json json_of(const TaskName& task) { return task.value; }

bool has_answer(Match match, std::string_view text, std::string_view answer) {
  const std::string in = plain_text(text), wanted = plain_text(answer);
  if (match == Match::start) return in.starts_with(wanted) && !is_part(in, 0, wanted.size());
  for (size_t at = in.find(wanted); at != std::string::npos; at = in.find(wanted, at + 1))
    if (!is_part(in, at, at + wanted.size())) return true;
  return false;
}

size_t OwnQuestion::n_tokens() const {
  size_t longest = 0;
  for (const Ids& choice : choices) longest = std::max(longest, choice.size());
  return prompt.size() + question.size() + longest;
}

std::string OwnQuestion::fingerprint() const {
  std::string bytes;
  append(bytes, prompt);
  append(bytes, question);
  for (const Ids& choice : choices) append(bytes, choice);
  for (const std::string& answer : answers) bytes += answer + '\0';
  return sha256_hex(bytes).substr(0, 16);
}

OwnTask read_own_task(const OwnSettings& settings, const TaskName& name,
                      const decode::ModelFiles& files, uint64_t seed, int n) {
  if (!std::filesystem::exists(name.value))
    throw input_error(name.value, "the file does not exist, but eval.tasks names it")
        .hint("a task whose name has a slash or ends in .jsonl is a file of questions");
  const LineReader reader(files);
  std::vector<OwnQuestion> all;
  io::for_each_ordered_jsonl(
      io::read_text_file(name.value), name.value,
      [&](const OrderedJson& line, const std::string& where) {
        all.push_back(reader.read(line, where));
        all.back().record = static_cast<int64_t>(all.size());
        if (all.back().choices.empty() != all.front().choices.empty())
          throw input_error(where, "the question has {}choices, but {} has {}",
                            all.back().choices.empty() ? "no " : "", all.front().where,
                            all.front().choices.empty() ? "none" : "some")
              .hint("keep questions of one kind in a file: move the other kind to a second file");
      });
  if (all.empty())
    throw input_error(name.value, "expected questions, found none")
        .hint("write one question a line: {\"prompt\": \"...\", \"answer\": \"...\"}");
  OwnTask task{.name = name, .questions = {}, .n_lines = all.size()};
  if (all.front().choices.empty() && settings.max_tokens > 0) {
    task.max_tokens = settings.max_tokens;
  } else if (all.front().choices.empty()) {
    size_t longest = 0;
    for (const OwnQuestion& q : all)
      for (const std::string& answer : q.answers)
        longest = std::max(longest, encode_piece(*files.tokenizer, " " + answer).size());
    task.max_tokens = static_cast<int>(longest) + (settings.match == Match::start ? 8 : 64);
  }
  for (const int64_t i : draw_own_records(static_cast<int64_t>(all.size()), seed, n))
    task.questions.push_back(std::move(all[static_cast<size_t>(i)]));
  return task;
}

}  // namespace tandem::eval
