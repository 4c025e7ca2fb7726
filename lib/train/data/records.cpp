#include "train/data/records.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/quote.h"
#include "io/text_file.h"

namespace tandem::train {
namespace {

constexpr const char* kQuestions[] = {"instruction", "prompt", "question", "Problem", "problem"};
constexpr const char* kAnswers[] = {"output", "completion", "response",  "chosen",
                                    "answer", "Rationale",  "rationale", "solution"};

// Ids are indices of tables; no vocabulary comes near.
constexpr int64_t kLargestId = (int64_t{1} << 31) - 1;

constexpr const char* kForms =
    "a record needs instruction and output, messages, conversations, text or ids";

/// The first of these keys that is there, and not null.
const char* first_key(const io::Json& object, std::span<const char* const> keys) {
  for (const char* key : keys)
    if (const auto it = object.find(key); it != object.end() && !it->is_null()) return key;
  return nullptr;
}

/// The answer to a prompt that is a list of messages; null for other prompts.
const char* chat_answer(const io::Json& object) {
  const char* answer = first_key(object, kAnswers);
  return answer != nullptr && object.contains("prompt") && object["prompt"].is_array() ? answer
                                                                                       : nullptr;
}

RecordForm form_of(const io::Json& object) {
  if (object.contains("messages") || object.contains("conversations") || chat_answer(object))
    return RecordForm::chat;
  if (object.contains("ids")) return RecordForm::tokens;
  if (first_key(object, kQuestions) != nullptr || object.contains("input"))
    return RecordForm::instructions;
  return object.contains("text") ? RecordForm::text : RecordForm::automatic;
}

Error no_form(const io::Json& object, const std::string& where) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(io::quote(key, 40));
  if (keys.size() > 6) keys.resize(6);
  return input_error(where, "expected a record of a known form, found {}",
                     keys.empty() ? "no keys" : fmt::format("the keys {}", fmt::join(keys, ", ")))
      .hint(kForms);
}

Instruction parse_instruction(const io::Json& object, const std::string& where) {
  Instruction record;
  record.input = io::find_string(object, "input", where).value_or("");
  const char* question = first_key(object, kQuestions);
  if (question != nullptr)
    record.instruction = io::get_string(object, question, where);
  else
    std::swap(record.instruction, record.input);
  const char* answer = first_key(object, kAnswers);
  if (answer == nullptr)
    throw input_error(where, "expected one of the answer keys {}, found none",
                      fmt::join(kAnswers, ", "))
        .hint(kForms);
  record.output = io::get_string(object, answer, where);
  return record;
}

int32_t token_number(const io::Json& value, const std::string& name, const std::string& where,
                     int64_t min, int64_t max) {
  return static_cast<int32_t>(io::as_int(value, name, where, min, max));
}

Sample parse_tokens(const io::Json& object, const std::string& where) {
  Sample sample;
  for (const io::Json& id : io::get_array(object, "ids", where))
    sample.ids.push_back(token_number(id, "token id", where, 0, kLargestId));
  const auto n = static_cast<int64_t>(sample.ids.size());
  if (n < 2) throw input_error(where, "expected at least 2 token ids, found {}", n);
  const io::Json* spans = io::find_array(object, "supervised", where);
  if (spans == nullptr) {
    sample.supervised = {{1, static_cast<int32_t>(n)}};
    return sample;
  }
  int64_t least = 1;  // the first token is predicted by none
  for (const io::Json& span : *spans) {
    if (!span.is_array() || span.size() != 2)
      throw input_error(where, "supervised: expected [begin, end], found {}", io::describe(span));
    const int32_t begin = token_number(span[0], "begin of supervised", where, least, n - 1);
    sample.supervised.push_back(
        {begin, token_number(span[1], "end of supervised", where, begin + 1, n)});
    least = sample.supervised.back().end;
  }
  return sample;
}

/// A role by the name that ShareGPT's files give it.
std::string role_of(const std::string& from, const std::string& where) {
  constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
      {"human", "user"},        {"user", "user"},           {"gpt", "assistant"},
      {"chatgpt", "assistant"}, {"bing", "assistant"},      {"bard", "assistant"},
      {"model", "assistant"},   {"assistant", "assistant"}, {"system", "system"},
      {"tool", "tool"},         {"observation", "tool"},    {"function_response", "tool"}};
  for (const auto& [name, role] : kRoles)
    if (name == from) return std::string(role);
  throw input_error(where, "conversations: unknown speaker {}", io::quote(from))
      .hint("use human, user, gpt, assistant, model, system, tool or observation");
}

/// {"conversations": [{"from", "value"}]} as messages; turns with role and content stay.
io::OrderedJson messages_of(const io::OrderedJson& object, const std::string& where) {
  auto messages = io::OrderedJson::array();
  if (const auto system = object.find("system");
      system != object.end() && system->is_string() && *system != "")
    messages.push_back({{"role", "system"}, {"content", *system}});
  io::get_array(io::Json(object), "conversations", where);  // which refuses anything else
  for (const io::OrderedJson& turn : object["conversations"]) {
    if (!turn.is_object() || !turn.contains("from")) {
      messages.push_back(turn);  // which parse_chat checks
      continue;
    }
    const io::Json plain(turn);
    io::OrderedJson message = {{"role", role_of(io::get_string(plain, "from", where), where)},
                               {"content", io::get_string(plain, "value", where)}};
    for (const auto& [key, value] : turn.items())
      if (key != "from" && key != "value") message[key] = value;
    messages.push_back(std::move(message));
  }
  return messages;
}

Chat parse_chat_record(const io::OrderedJson& object, const std::string& where) {
  io::OrderedJson chat = object;
  size_t asked = 0;  // messages of the prompt, which are not learned
  if (!object.contains("messages") && object.contains("conversations")) {
    chat["messages"] = messages_of(object, where);
  } else if (!object.contains("messages")) {
    const io::OrderedJson& answer = object.at(chat_answer(io::Json(object)));
    chat["messages"] = object["prompt"];
    asked = object["prompt"].size();
    if (!answer.is_array())
      throw input_error(where, "expected the answer as a list of messages, like its prompt");
    for (const io::OrderedJson& message : answer) chat["messages"].push_back(message);
  }
  if (const auto tools = chat.find("tools"); tools != chat.end() && tools->is_string())
    *tools = io::parse_ordered_json(tools->get<std::string>(), where + ": tools");
  Chat parsed = text::parse_chat(chat, where);
  std::fill_n(parsed.learned.begin(), asked, false);
  return parsed;
}

Record parse_record(const io::OrderedJson& ordered, RecordForm form, const std::string& where) {
  const io::Json object(ordered);
  if (!object.is_object())
    throw input_error(where, "expected a record as an object, found {}", io::describe(object));
  const RecordForm found = form_of(object);
  if (found == RecordForm::automatic) throw no_form(object, where);
  if (form != RecordForm::automatic && form != found) {
    const auto name = [](RecordForm f) { return enum_names(f)[static_cast<size_t>(f)]; };
    throw input_error(where, "expected a record of form {}, found {}", name(form), name(found))
        .hint("data.form: auto chooses the form by the keys of each record");
  }
  if (found == RecordForm::chat) return {parse_chat_record(ordered, where), where};
  if (found == RecordForm::text)
    return {Document{.text = io::get_string(object, "text", where), .ends = true}, where};
  if (found == RecordForm::tokens) return {parse_tokens(object, where), where};
  return {parse_instruction(object, where), where};
}

/// '[', '{', or another character that a text begins with; 0 for none.
char first_character(std::string_view bytes) {
  const size_t at = bytes.find_first_not_of(" \t\r\n");
  return at == std::string_view::npos ? '\0' : bytes[at];
}

std::vector<Record> parse_array(std::string_view bytes, RecordForm form, const std::string& where) {
  std::vector<Record> records;
  int64_t number = 0;
  for (const io::OrderedJson& object : io::parse_ordered_json(bytes, where))
    records.push_back(parse_record(object, form, fmt::format("{}: record {}", where, ++number)));
  return records;
}

}  // namespace

std::vector<Record> parse_records(std::string_view bytes, RecordForm form,
                                  const std::string& where) {
  bytes = io::text_in(bytes, where);
  std::vector<Record> records;
  const char first = first_character(bytes);
  if (first == '[') {
    records = parse_array(bytes, form, where);
  } else if (first == '{') {
    io::for_each_ordered_jsonl(bytes, where,
                               [&](const io::OrderedJson& object, const std::string& line) {
                                 records.push_back(parse_record(object, form, line));
                               });
  } else if (first != '\0') {
    if (form != RecordForm::automatic && form != RecordForm::text)
      throw input_error(where, "expected JSON: an array of records, or one record a line")
          .hint("data.form: text reads the file as one text");
    records.push_back({Document{.text = std::string(bytes)}, where});
  }
  if (records.empty()) throw input_error(where, "expected records, found none");
  return records;
}

std::vector<Record> read_records(const std::filesystem::path& path, RecordForm form) {
  const std::string bytes = io::read_text_file(path);
  const bool is_text = path.extension() == ".txt" && form != RecordForm::instructions &&
                       form != RecordForm::chat && !bytes.empty();
  if (is_text) return {{Document{.text = bytes}, path.string()}};
  return parse_records(bytes, form, path.string());
}

}  // namespace tandem::train
