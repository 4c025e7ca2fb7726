#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decode/model_files.h"
#include "io/json_fwd.h"

namespace tandem::decode {

/// Where a tool's prompts come from, as its user said it. Paths may be "-".
struct PromptSource {
  std::optional<std::string> text;                 // -p
  std::optional<std::filesystem::path> document;   // -f: comes before the text or the questions
  std::optional<std::filesystem::path> ids;        // --prompt-ids: a JSON array, used as it is
  std::optional<std::filesystem::path> questions;  // --questions: one a line, about the document
  std::optional<std::filesystem::path> prompts;    // --prompts: JSONL
  bool chat = false;
  std::optional<bool> thinking;  // of chats; unset: as the template has it

  bool empty() const { return !text && !document && !ids && !questions && !prompts; }
};

struct PromptSet {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<std::string> labels;  // the question of each sequence; empty for single prompts
  std::vector<int> adapters;        // of each sequence, of ModelFiles::adapters; negative: none; or
                                    // empty: of all
  size_t shared = 0;                // tokens that all sequences begin with and that are kept once
};

/// Differs where tokens do; 16 hex digits.
std::string fingerprint_of(const PromptSet& prompts);

/// Reads and encodes all prompts. Questions are written as "\n\nQuestion: Q\nAnswer:" after the
/// document, or with `chat` as a user turn that ends with the question; each is encoded whole, so
/// that sharing the document never changes a token.
/// Lines of a JSONL file: {"prompt": "text"}, {"ids": [1, 2]} or {"messages": [{"role",
/// "content"}]}, where a message of an assistant may have a key "reasoning_content" too. Next to
/// it "adapter" may name one of files.adapters.
/// continues  the prompts go on after a saved state: no BOS, no chat template
/// errors   kind usage: sources that do not go together; kind input: missing, empty or malformed
///          prompts, ids outside the vocabulary, text for a model without tokenizer; kind recipe: a
///          chat template that has not what `thinking` asks for
PromptSet read_prompts(const PromptSource& source, const ModelFiles& files, bool continues);

/// A JSON array of token ids in [0, vocab).
/// errors   kind input at `where`
std::vector<int32_t> parse_ids(std::string_view json, int vocab, const std::string& where);

/// The prompt of one line of a JSONL prompts file.
std::vector<int32_t> parse_prompt(const io::Json& line, const ModelFiles& files,
                                  const std::string& where, std::optional<bool> thinking = {});

}  // namespace tandem::decode
