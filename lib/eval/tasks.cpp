#include "eval/tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "io/text_file.h"

namespace tandem::eval {
namespace {

/// Ids of what a file holds; errors name the file.
Ids encode_named(const text::Tokenizer& tokenizer, std::string_view text,
                 const std::filesystem::path& path) {
  try {
    return tokenizer.encode(text, {.add_bos = false, .parse_special = false});
  } catch (Error& e) {
    e.add_context("in " + path.string());
    throw;
  }
}

/// The stream of one case: Philox itself mixes the names into a key, so streams never overlap.
PhiloxStream case_stream(uint64_t seed, Task task, size_t length, uint32_t index) {
  const auto words = philox4x32({static_cast<uint32_t>(task), static_cast<uint32_t>(length), index,
                                 static_cast<uint32_t>(DrawPurpose::data)},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return PhiloxStream((uint64_t{words[0]} << 32) | words[1], words[2]);
}

/// Places right after a full stop.
std::vector<size_t> sentence_ends(const text::Tokenizer& tokenizer, const Ids& prose) {
  std::vector<size_t> ends;
  for (size_t i = 0; i < prose.size(); ++i)
    if (tokenizer.token_bytes(prose[i]) == ".") ends.push_back(i + 1);
  return ends;
}

/// Inserts each needle at one of the places, drawn independently, in the given order.
Ids insert_needles(PhiloxStream& rng, const Ids& prose, const std::vector<size_t>& places,
                   const std::vector<Ids>& needles) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < needles.size(); ++i)
    chosen.push_back(places[rng.below(static_cast<uint32_t>(places.size()))]);
  std::sort(chosen.begin(), chosen.end());
  Ids ids;
  auto copied = prose.begin();
  for (size_t i = 0; i < needles.size(); ++i) {
    const auto place = prose.begin() + static_cast<std::ptrdiff_t>(chosen[i]);
    ids.insert(ids.end(), copied, place);
    ids.insert(ids.end(), needles[i].begin(), needles[i].end());
    copied = place;
  }
  ids.insert(ids.end(), copied, prose.end());
  return ids;
}

}  // namespace

Ids encode_piece(const text::Tokenizer& tokenizer, std::string_view text) {
  if (tokenizer.drops_leading_space() && text.starts_with(' ')) text.remove_prefix(1);
  return tokenizer.encode(text, {.add_bos = false, .parse_special = false});
}

Ids encode_file(const text::Tokenizer& tokenizer, const std::filesystem::path& path) {
  return encode_named(tokenizer, io::read_text_file(path), path);
}

std::vector<Ids> encode_documents(const text::Tokenizer& tokenizer,
                                  const std::filesystem::path& path) {
  constexpr char kSeparator = '\x1e';
  const std::string text = io::read_text_file(path);
  std::vector<Ids> documents;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.size(), text.find(kSeparator, begin));
    documents.push_back(
        encode_named(tokenizer, std::string_view(text).substr(begin, end - begin), path));
    begin = end + 1;
  }
  return documents;
}

Haystack::Haystack(const text::Tokenizer& tokenizer, const std::filesystem::path& path)
    : tokenizer_(tokenizer), where_(path.string()) {
  if (path.empty()) return;
  ids_ = encode_file(tokenizer, path);
}

Ids Haystack::cut(PhiloxStream& rng, size_t n) const {
  if (where_.empty()) {
    // Few tokenizers average more than 5 bytes of English a token; if one does, ask for more.
    for (size_t bytes = 5 * n + 64;; bytes *= 2) {
      PhiloxStream again = rng;
      Ids ids = encode_piece(tokenizer_, generate_prose(again, bytes));
      if (ids.size() < n) continue;
      rng = again;
      ids.resize(n);
      return ids;
    }
  }
  if (ids_.size() < n)
    throw input_error(where_, "the haystack has {} tokens, but {} are needed", ids_.size(), n)
        .hint("use a longer text, lower eval.lengths, or leave eval.haystack empty");
  const size_t begin = rng.below(static_cast<uint32_t>(ids_.size() - n + 1));
  return {ids_.begin() + static_cast<std::ptrdiff_t>(begin),
          ids_.begin() + static_cast<std::ptrdiff_t>(begin + n)};
}

Case CaseGenerator::make(Task task, size_t length, uint32_t index) const {
  constexpr size_t kMinProse = 64;  // tokens: two or three sentences, so that there is a full stop
  constexpr int kMaxCuts = 100;
  PhiloxStream rng = case_stream(seed_, task, length, index);
  const Quiz quiz = make_quiz(rng, task, length);
  std::vector<Ids> needles;
  for (const std::string& needle : quiz.needles)
    needles.push_back(encode_piece(tokenizer_, needle));

  Case c;
  c.question = encode_piece(
      tokenizer_, fmt::format("\n\nQuestion: {}\nAnswer:{}", quiz.question, quiz.answer_prefix));
  c.answer = encode_piece(tokenizer_, quiz.answer);
  c.answer_text = quiz.answer;
  c.haystack = tokenizer_.prefix();
  size_t used = c.n_tokens();
  for (const Ids& needle : needles) used += needle.size();
  const std::string_view name = enum_names(task)[static_cast<size_t>(task)];
  if (used + kMinProse > length)
    throw input_error("eval.lengths",
                      "{} of {} tokens is too short: needles, question and answer need {}", name,
                      length, used)
        .hint(fmt::format("set at least {} tokens", used + kMinProse));
  if (c.question.size() + c.answer.size() > size_t{kMaxTailTokens})
    throw input_error("tokenizer",
                      "the question and answer of {} have {} tokens, expected at most {}", name,
                      c.question.size() + c.answer.size(), kMaxTailTokens);
  // Files have tables and lists: where a cut holds no sentence, another may.
  Ids prose;
  std::vector<size_t> places;
  for (int cuts = 0; places.empty(); ++cuts) {
    if (cuts == kMaxCuts)
      throw input_error("eval.haystack",
                        "expected a full stop in one of {} pieces of {} tokens, found none",
                        kMaxCuts, length - used)
          .hint(
              "needles are inserted after full stops: use a text of sentences, or greater lengths");
    prose = haystack_.cut(rng, length - used);
    places = sentence_ends(tokenizer_, prose);
  }
  const Ids filled = insert_needles(rng, prose, places, needles);
  c.haystack.insert(c.haystack.end(), filled.begin(), filled.end());
  return c;
}

}  // namespace tandem::eval
