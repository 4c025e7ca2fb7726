#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "eval/answers.h"
#include "eval/tasks.h"
#include "recipe/fields.h"
#include "recipe/problems.h"
#include "train/data/sample_encoder.h"

namespace tandem::eval {

/// A prompt that a recipe writes out, as train::OwnTemplate does.
struct OwnPrompt {
  std::string prompt, prompt_with_input;

  template <class V>
  void fields(V& v) {
    v("prompt", prompt, "text before the answer, with {instruction} and optionally {eos}");
    v("prompt_with_input", prompt_with_input,
      "text before the answer for questions with an input, with {instruction} and {input}. Empty = "
      "prompt, with instruction, blank line and input as {instruction}");
  }
};

/// Section `sets`: questions of LLM-Adapters.
struct SetsSettings {
  std::filesystem::path path;
  train::TemplateName template_name = train::TemplateName::s2ft_eval;
  OwnPrompt custom;

  template <class V>
  void fields(V& v) {
    v("path", path, recipe::optional_input(),
      "folder of the LLM-Adapters question sets: boolq/test.json, AddSub/test.json, ...");
    v("template", template_name,
      "prompt template, one of those of data.template in s2ft-train. The default is the evaluation "
      "template of the S2FT program");
    v("custom", custom, "prompt texts of template: custom");
  }
  void check(recipe::Problems& p) const;
};

/// A question with its answer, and how the model is asked.
struct Question {
  int64_t record = 0;  // of the set's file, from 1 on
  std::string answer;
  Ids prompt;
};

/// A question as its file has it.
struct SetRecord {
  train::Instruction question;  // its output stays empty
  std::string answer;           // as answer_problem wants it
};

/// The file of a set in a folder of LLM-Adapters' sets.
std::filesystem::path set_file(const std::filesystem::path& folder, AnswerSet set);
/// How messages name a record of it: "sets/boolq/test.json: record 3".
std::string record_name(const std::filesystem::path& file, int64_t record);

/// Records of a set: a JSON array of objects with `instruction`, perhaps `input`, and `answer`, a
/// string or a number. Other keys are ignored.
/// errors   kind input at `where:line:column`, or naming the record: malformed JSON, no array, no
///          record; a record without instruction or answer, an answer that the set cannot have
std::vector<SetRecord> parse_set(std::string_view bytes, AnswerSet set, const std::string& where);

/// `n` different numbers of 0 .. size-1, or all where there are no more, in an order that is drawn
/// for (seed, set): the first ones of a greater n are those of a smaller one, and wherever a run
/// ends it has judged a fair sample, however a file is sorted.
std::vector<int64_t> draw_records(int64_t size, AnswerSet set, uint64_t seed, int n);
/// Draws questions of a JSONL file.
std::vector<int64_t> draw_own_records(int64_t size, uint64_t seed, int n);

/// Questions of a set in the order of draw_records, at most `n` of them.
/// errors   kind input: the set's file is not there; as parse_set and SampleEncoder::encode_prompt
std::vector<Question> read_questions(const SetsSettings& settings, AnswerSet set,
                                     const train::SampleEncoder& encoder, uint64_t seed, int n);

/// How the prompts of a model are written.
/// model_folder  of the chat template; empty: there is none
train::SampleEncoder prompt_encoder(const SetsSettings& settings, const text::Tokenizer& tokenizer,
                                    const std::filesystem::path& model_folder);

}  // namespace tandem::eval
