#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/chat.h"
#include "train/data/sample.h"
#include "train/data/settings.h"

namespace tandem::train {

/// A question with its answer.
struct Instruction {
  std::string instruction, input, output;
};

/// A text that is learned as it is.
struct Document {
  std::string text;
  bool ends = false;  // the end-of-text token follows: one of several documents
};

using text::Chat;

/// One entry of a data file.
struct Record {
  std::variant<Instruction, Chat, Document, Sample> content;
  std::string where;  // "train.jsonl:12", "train.json: record 3"
};

/// Reads data in one of these forms; `form` automatic goes by their keys:
///   instructions   {"instruction", "input", "output"}, as LLM-Adapters has it. In place of
///                  `instruction` may stand prompt, question, Problem or problem, in place of
///                  `output` completion, response, chosen, answer, Rationale, rationale or
///                  solution: the first that is there counts, and other keys are ignored.
///   chat           {"messages": [...]} (text::parse_chat); {"conversations": [{"from", "value"}]}
///                  with "system", as ShareGPT has it; {"prompt": [...], "completion": [...]} of
///                  messages, where the completion alone is learned
///   tokens         {"ids": [...], "supervised": [[begin, end], ...]}; without the second all are
///                  supervised
///   text           {"text"}, each a document; or a whole file that is no JSON, one document without
///                  an end
/// JSON is an array of objects or one object a line.
/// errors   kind input with line or number of the record: malformed JSON, none of these keys, a
///          form other than the one asked for; no record
std::vector<Record> parse_records(std::string_view bytes, RecordForm form,
                                  const std::string& where);

/// The same from a file; "-" is standard input. A file named *.txt is a text, even if it begins
/// like JSON.
std::vector<Record> read_records(const std::filesystem::path& path, RecordForm form);

}  // namespace tandem::train
