#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "text/tokenizer.h"

namespace tandem::eval {

using Ids = std::vector<int32_t>;

/// Questions about things hidden in long prose.
enum class Task : uint8_t {
  needle1,  // one number
  needle8,  // one of eight numbers
  kv,       // one line of length/40 lines "key: value."
  vt,       // the three variables of a chain of assignments
  cwe,      // the three most common words of a list
  fwe,      // the three most frequent words of a list with a Zipf tail
  qa,       // one of length/60 passages that differ in one or two words
};
constexpr std::array<std::string_view, 7> enum_names(Task) {
  return {"needle1", "needle8", "kv", "vt", "cwe", "fwe", "qa"};
}

/// Ids of a piece of a longer text, without what the tokenizer puts in front. Tokenizers that put a
/// space before a text put that of a piece that begins with one.
Ids encode_piece(const text::Tokenizer& tokenizer, std::string_view text);

/// Ids of a text file, without what the tokenizer puts in front.
/// errors   kind input: unreadable, not UTF-8; names the file
Ids encode_file(const text::Tokenizer& tokenizer, const std::filesystem::path& path);

/// The same of the documents of a file, which U+001E separates: one or more.
std::vector<Ids> encode_documents(const text::Tokenizer& tokenizer,
                                  const std::filesystem::path& path);

/// One question. The prompt is haystack and question; the answer begins with a space and ends with
/// a full stop.
struct Case {
  Ids haystack;  // what the tokenizer puts in front, prose, needles
  Ids question;  // "\n\nQuestion: ...\nAnswer:" and the first words of the answer
  Ids answer;
  std::string answer_text;

  size_t n_tokens() const { return haystack.size() + question.size() + answer.size(); }
};

/// At least `min_bytes` of varied, grammatical English: paragraphs of three to seven sentences
/// about people, places and weather, each paragraph about one person. It holds no digits and none
/// of the phrasings of the tasks, so nothing in it answers a question.
std::string generate_prose(PhiloxStream& rng, size_t min_bytes);

/// Prose to hide needles in: a file, tokenised once, or generated text, fresh for every case.
class Haystack {
 public:
  /// path     empty = generated
  /// errors   kind input: unreadable, not UTF-8
  Haystack(const text::Tokenizer& tokenizer, const std::filesystem::path& path);

  /// `n` consecutive tokens from a random place.
  /// errors   kind input: the file holds fewer
  Ids cut(PhiloxStream& rng, size_t n) const;

 private:
  const text::Tokenizer& tokenizer_;
  std::string where_;
  Ids ids_;  // of the file
};

/// A task's question and answer, as text.
struct Quiz {
  std::vector<std::string> needles;  // in the order in which they shall stand
  std::string question, answer_prefix, answer;
};

/// Draws a quiz for a case of `length` tokens.
Quiz make_quiz(PhiloxStream& rng, Task task, size_t length);

/// Most tokens of question and answer together; engines plan for it.
inline constexpr int kMaxTailTokens = 512;

/// Makes cases; each is a pure function of (seed, task, length, index), tokenizer and haystack.
class CaseGenerator {
 public:
  CaseGenerator(const text::Tokenizer& tokenizer, const std::filesystem::path& haystack,
                uint64_t seed)
      : tokenizer_(tokenizer), haystack_(tokenizer, haystack), seed_(seed) {}

  /// A case of exactly `length` tokens, answer included.
  /// errors   kind input: too short for the needles and some prose, no full stop in the prose
  Case make(Task task, size_t length, uint32_t index) const;

 private:
  const text::Tokenizer& tokenizer_;
  Haystack haystack_;
  uint64_t seed_;
};

}  // namespace tandem::eval
