#include "eval/answer_sets.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"
#include "recipe/value_of.h"

namespace tandem::eval {
namespace {

std::string answer_of(const io::Json& object, AnswerSet set, const std::string& where) {
  const auto it = object.find("answer");
  // LLM-Adapters writes numbers as text; other conversions of these sets do not.
  std::string answer =
      it != object.end() && it->is_number() ? it->dump() : io::get_string(object, "answer", where);
  if (const std::string problem = answer_problem(set, answer); !problem.empty())
    throw input_error(where, "the answer is {}: {} for {}", io::quote(answer, 40), problem,
                      name_of(set));
  return answer;
}

SetRecord parse_record(const io::Json& object, AnswerSet set, const std::string& where) {
  if (!object.is_object())
    throw input_error(where, "expected a question as an object, found {}", io::describe(object));
  SetRecord record;
  record.question.instruction = io::get_string(object, "instruction", where);
  record.question.input = io::find_string(object, "input", where).value_or("");
  record.answer = answer_of(object, set, where);
  return record;
}

}  // namespace

void SetsSettings::check(recipe::Problems& p) const {
  const bool written = !custom.prompt.empty() || !custom.prompt_with_input.empty();
  if (template_name != train::TemplateName::custom) {
    if (written)
      p.field("custom", "eval.sets.custom needs eval.sets.template custom, found {}: set it",
              recipe::yaml_text(template_name));
    return;
  }
  if (custom.prompt.empty())
    p.field("custom.prompt",
            "eval.sets.template custom needs eval.sets.custom.prompt, which is not set");
  for (const auto& [key, text] : {std::pair("prompt", &custom.prompt),
                                  std::pair("prompt_with_input", &custom.prompt_with_input)})
    if (const std::string problem = train::template_problem(*text); !problem.empty())
      p.field(std::string("custom.") + key, "eval.sets.custom.{}: {}", key, problem);
}

std::filesystem::path set_file(const std::filesystem::path& folder, AnswerSet set) {
  return folder / facts_of(set).folder / "test.json";
}

std::string record_name(const std::filesystem::path& file, int64_t record) {
  return fmt::format("{}: record {}", file.string(), record);
}

std::vector<SetRecord> parse_set(std::string_view bytes, AnswerSet set, const std::string& where) {
  const io::Json file = io::parse_json(bytes, where);
  if (!file.is_array())
    throw input_error(where, "expected an array of questions, found {}", io::describe(file));
  std::vector<SetRecord> records;
  for (const io::Json& object : file) {
    const auto number = static_cast<int64_t>(records.size()) + 1;
    records.push_back(parse_record(object, set, record_name(where, number)));
  }
  if (records.empty()) throw input_error(where, "expected questions, found none");
  return records;
}

namespace {

/// `stream` sets draws apart.
std::vector<int64_t> draw(int64_t size, uint32_t stream, uint64_t seed, int n) {
  std::vector<int64_t> numbers(static_cast<size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  const size_t drawn = std::min(numbers.size(), static_cast<size_t>(n));
  PhiloxStream rng(seed, stream);
  // The first places of Fisher and Yates' shuffle.
  for (size_t i = 0; i < drawn; ++i)
    std::swap(numbers[i], numbers[i + rng.below(static_cast<uint32_t>(numbers.size() - i))]);
  numbers.resize(drawn);
  return numbers;
}

}  // namespace

std::vector<int64_t> draw_records(int64_t size, AnswerSet set, uint64_t seed, int n) {
  return draw(size, static_cast<uint32_t>(set), seed, n);
}

std::vector<int64_t> draw_own_records(int64_t size, uint64_t seed, int n) {
  return draw(size, static_cast<uint32_t>(enum_names(AnswerSet{}).size()), seed, n);
}

std::vector<Question> read_questions(const SetsSettings& settings, AnswerSet set,
                                     const train::SampleEncoder& encoder, uint64_t seed, int n) {
  const std::filesystem::path file = set_file(settings.path, set);
  if (!std::filesystem::exists(file))
    throw input_error(file.string(), "the file does not exist, but task {} needs it", name_of(set))
        .hint(
            "set eval.sets.path (--sets) to the folder dataset of "
            "https://github.com/AGI-Edgerunners/LLM-Adapters, or leave the task out");
  std::vector<SetRecord> records = parse_set(io::read_file(file), set, file.string());
  std::vector<Question> questions;
  for (const int64_t i : draw_records(static_cast<int64_t>(records.size()), set, seed, n)) {
    SetRecord& record = records[static_cast<size_t>(i)];
    questions.push_back({i + 1, std::move(record.answer),
                         encoder.encode_prompt(record.question, record_name(file, i + 1))});
  }
  return questions;
}

train::SampleEncoder prompt_encoder(const SetsSettings& settings, const text::Tokenizer& tokenizer,
                                    const std::filesystem::path& model_folder) {
  train::DataSettings data;
  data.template_name = settings.template_name;
  data.custom.prompt = settings.custom.prompt;
  data.custom.prompt_with_input = settings.custom.prompt_with_input;
  return {data, &tokenizer, model_folder, tokenizer.id_limit()};
}

}  // namespace tandem::eval
