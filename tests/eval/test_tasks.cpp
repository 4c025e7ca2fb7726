#include <doctest/doctest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "eval/eval_testing.h"
#include "io/file.h"
#include "temporary_folder.h"

using namespace eval_testing;
using namespace tandem::eval;
using tandem::Error;
using tandem::ErrorKind;
using tandem::PhiloxStream;

namespace {

constexpr Task kTasks[] = {Task::needle1, Task::needle8, Task::kv, Task::vt,
                           Task::cwe,     Task::fwe,     Task::qa};

CaseGenerator generator(uint64_t seed, const std::filesystem::path& haystack = {}) {
  return {tokenizer(), haystack, seed};
}

std::string text(const Ids& ids) { return tokenizer().decode(ids, true); }

std::filesystem::path demo() { return source_dir() / "recipes/demo/lighthouse-logbook.txt"; }

std::vector<std::string> matches(const std::string& text, const std::string& pattern,
                                 size_t group) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.push_back((*it)[group]);
  return found;
}

/// How often each word is in the list of a prompt.
std::map<std::string, int> word_counts(const std::string& prompt) {
  const auto lists = matches(prompt, " Word list: ([a-z, ]+)\\.", 1);
  REQUIRE(lists.size() == 1);
  std::map<std::string, int> counts;
  std::stringstream words(lists[0]);
  for (std::string word; words >> word;) {
    if (word.back() == ',') word.pop_back();
    ++counts[word];
  }
  return counts;
}

}  // namespace

TEST_SUITE("eval/tasks") {
  TEST_CASE("a case has exactly the length asked for, at every length") {
    const CaseGenerator make = generator(7);
    for (const Task task : kTasks)
      for (const size_t length : {600u, 1000u, 3001u, 4096u}) {
        if (task == Task::cwe && length < 3000) continue;  // its list alone may take that
        CAPTURE(static_cast<int>(task));
        const Case c = make.make(task, length, 3);
        CHECK(c.n_tokens() == length);
        CHECK(c.haystack[0] == *tokenizer().bos_id());
        CHECK(text(c.answer) == c.answer_text);
        CHECK(c.answer_text.front() == ' ');
        CHECK(c.answer_text.back() == '.');
        CHECK(text(c.question).starts_with("\n\nQuestion: "));
      }
  }

  TEST_CASE("cases are functions of seed, task, length and index") {
    const Case c = generator(7).make(Task::needle8, 800, 3);
    const Case again = generator(7).make(Task::needle8, 800, 3);
    CHECK(c.haystack == again.haystack);
    CHECK(c.question == again.question);
    CHECK(c.answer == again.answer);
    CHECK(c.answer != generator(8).make(Task::needle8, 800, 3).answer);
    CHECK(c.answer != generator(7).make(Task::needle8, 800, 4).answer);
    CHECK(c.answer != generator(7).make(Task::needle8, 801, 3).answer);
    std::set<std::string> answers;
    for (uint32_t i = 0; i < 50; ++i)
      answers.insert(generator(7).make(Task::needle1, 200, i).answer_text);
    CHECK(answers.size() == 50);
  }

  TEST_CASE("the asked value is that of its needle, which stands once, after a full stop") {
    for (const auto& haystack : {std::filesystem::path(), demo()})
      for (const Task task : {Task::needle1, Task::needle8})
        for (uint32_t i = 0; i < 5; ++i) {
          const Case c = generator(1, haystack).make(task, 1000, i);
          const std::string prompt = text(c.haystack), asked = text(c.question);
          const auto keys =
              matches(asked, "What is the special magic value for ([a-z]+-[a-z]+)\\?", 1);
          REQUIRE(keys.size() == 1);
          const std::string needle =
              " The special magic value for " + keys[0] + " is" + c.answer_text;
          CHECK(count(prompt, needle) == 1);
          CHECK(prompt[prompt.find(needle) - 1] == '.');
          CHECK(asked.ends_with("Answer: The special magic value for " + keys[0] + " is"));
          const bool from_demo = !haystack.empty();  // it holds needles of its own
          if (!from_demo)
            CHECK(count(prompt, "special magic value") == (task == Task::needle1 ? 1 : 8));
        }
  }

  TEST_CASE("kv hides length / 40 lines of different keys and asks for one") {
    const Case c = generator(2).make(Task::kv, 2000, 0);
    const std::string prompt = text(c.haystack), asked = text(c.question);
    const std::string line = " ([a-z]+-[a-z]+-[1-9][0-9]): ([1-9][0-9]{6})\\.";
    const auto keys = matches(prompt, line, 1), values = matches(prompt, line, 2);
    CHECK(keys.size() == 50);
    CHECK(std::set(keys.begin(), keys.end()).size() == 50);
    const auto wanted = matches(asked, "What is the value of ([a-z0-9-]+)\\?", 1);
    REQUIRE(wanted.size() == 1);
    const auto at = std::find(keys.begin(), keys.end(), wanted[0]);
    REQUIRE(at != keys.end());
    CHECK(c.answer_text == " " + values[static_cast<size_t>(at - keys.begin())] + ".");
  }

  TEST_CASE("vt is a chain in order") {
    const Case c = generator(3).make(Task::vt, 1000, 0);
    const std::string prompt = text(c.haystack);
    const auto value = matches(text(c.question), "assigned the value ([1-9][0-9]{4})\\?", 1);
    REQUIRE(value.size() == 1);
    std::smatch m;
    const std::string answer = c.answer_text;
    REQUIRE(std::regex_match(
        answer, m, std::regex(" ([A-HJ-NP-Z]{4}), ([A-HJ-NP-Z]{4}), ([A-HJ-NP-Z]{4})\\.")));
    const std::string a = m[1], b = m[2], d = m[3];
    const size_t first = prompt.find(" VAR " + a + " = " + value[0] + "."),
                 second = prompt.find(" VAR " + b + " = VAR " + a + "."),
                 third = prompt.find(" VAR " + d + " = VAR " + b + ".");
    REQUIRE(third != std::string::npos);
    CHECK(first < second);
    CHECK(second < third);
  }

  TEST_CASE("cwe's answer is the sorted three words that fill an eighth of the list each") {
    const Case c = generator(4).make(Task::cwe, 4096, 0);
    const auto counts = word_counts(text(c.haystack));
    int total = 0;
    for (const auto& [word, n] : counts) total += n;
    CHECK(total == 800);
    std::string answer;  // a map is sorted
    for (const auto& [word, n] : counts)
      if (n >= 100) answer += (answer.empty() ? " " : ", ") + word;
    CHECK(c.answer_text == answer + ".");
  }

  TEST_CASE("fwe's answer is the sorted three words that stand out, in a list with a Zipf tail") {
    std::set<std::string> answers;
    for (uint32_t i = 0; i < 10; ++i) {
      const Case c = generator(4).make(Task::fwe, 4096, i);
      const auto counts = word_counts(text(c.haystack));
      CHECK(counts.size() == 60);
      std::vector<std::pair<int, std::string>> by_count;
      for (const auto& [word, n] : counts) by_count.emplace_back(n, word);
      std::ranges::sort(by_count, std::greater<>());
      // The fourth is far behind the third, and the order of the list gives nothing away.
      CHECK(by_count[2].first >= 2 * by_count[3].first);
      CHECK(by_count[0].first > by_count[1].first);
      CHECK(by_count[1].first > by_count[2].first);
      CHECK(by_count[3].first > 2 * by_count[20].first);
      std::set<std::string> three;
      for (int j = 0; j < 3; ++j) three.insert(by_count[static_cast<size_t>(j)].second);
      std::string answer;
      for (const std::string& word : three) answer += (answer.empty() ? " " : ", ") + word;
      CHECK(c.answer_text == answer + ".");
      CHECK(text(c.question).find(*three.begin()) == std::string::npos);
      answers.insert(answer);
    }
    CHECK(answers.size() == 10);
  }

  TEST_CASE("qa asks for one of length / 60 passages; others differ from it in one word") {
    for (uint32_t i = 0; i < 5; ++i) {
      const Case c = generator(6).make(Task::qa, 6000, i);
      const std::string prompt = text(c.haystack), asked = text(c.question);
      const std::string passage =
          " Remember that the secret of ([a-z]+)-([a-z]+) is ([a-z]+ [a-z]+)\\.";
      const auto adjectives = matches(prompt, passage, 1), nouns = matches(prompt, passage, 2),
                 values = matches(prompt, passage, 3);
      REQUIRE(adjectives.size() == 100);
      CHECK(std::set(values.begin(), values.end()).size() == 100);
      const auto wanted = matches(asked, "What is the secret of ([a-z]+-[a-z]+)\\?", 1);
      REQUIRE(wanted.size() == 1);
      CHECK(asked.ends_with("Answer: The secret of " + wanted[0] + " is"));
      int found = 0, same_adjective = 0, same_noun = 0;
      for (size_t p = 0; p < 100; ++p) {
        if (adjectives[p] + "-" + nouns[p] == wanted[0]) {
          ++found;
          CHECK(c.answer_text == " " + values[p] + ".");
        }
        same_adjective += wanted[0].starts_with(adjectives[p] + "-") ? 1 : 0;
        same_noun += wanted[0].ends_with("-" + nouns[p]) ? 1 : 0;
      }
      CHECK(found == 1);
      CHECK(same_adjective == 10);  // a whole grid of 10 x 10
      CHECK(same_noun == 10);
      CHECK(asked.find(c.answer_text.substr(1)) == std::string::npos);
    }
  }

  TEST_CASE("needles stand everywhere, not at one end") {
    int early = 0;
    constexpr int kCases = 1000;
    for (uint32_t i = 0; i < kCases; ++i) {
      const std::string prompt = text(generator(5).make(Task::needle1, 400, i).haystack);
      early += prompt.find("special magic") < prompt.size() / 2 ? 1 : 0;
    }
    // Half of 1000, within 4 standard deviations.
    CHECK(std::abs(early - kCases / 2) <= 63);
  }

  TEST_CASE("a haystack of a file is cut at different places") {
    const std::string whole =
        text(tokenizer().encode(tandem::io::read_file(demo()), {.add_bos = false}));
    const Haystack haystack(tokenizer(), demo());
    PhiloxStream rng(1);
    std::set<size_t> places;
    for (int i = 0; i < 10; ++i) {
      const std::string part = text(haystack.cut(rng, 100));
      const size_t place = whole.find(part);
      CHECK(place != std::string::npos);
      places.insert(place);
    }
    CHECK(places.size() >= 9);
  }

  TEST_CASE("a byte order mark in front of a text is dropped, one within is kept") {
    const tandem::test::TemporaryFolder folder;
    const std::string mark = "\xEF\xBB\xBF", prose = "Once upon a time\x1Ethe fog came in.";
    const auto plain = folder.write("plain", prose), marked = folder.write("marked", mark + prose);
    const auto within = folder.write("within", "Once upon a time\x1E" + mark + "the fog came in.");
    CHECK(encode_file(tokenizer(), marked) == encode_file(tokenizer(), plain));
    const auto documents = encode_documents(tokenizer(), plain);
    CHECK(documents.size() == 2);
    CHECK(encode_documents(tokenizer(), marked) == documents);
    CHECK(encode_documents(tokenizer(), within) != documents);
    PhiloxStream one(1), other(1);
    CHECK(Haystack(tokenizer(), marked).cut(one, 5) == Haystack(tokenizer(), plain).cut(other, 5));
  }

  TEST_CASE("what cannot be made says why") {
    const auto failure = [](auto&& action) {
      try {
        action();
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::input);
        return std::string(e.what());
      }
      return std::string("nothing");
    };
    CHECK(failure([] {
            generator(0).make(Task::needle8, 100, 0);
          }).find("needle8 of 100 tokens is too short") != std::string::npos);
    CHECK(failure([] { generator(0, demo()).make(Task::needle1, 16000, 0); }).find("are needed") !=
          std::string::npos);
    const tandem::test::TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "word and word ";
    const auto path = folder.write("no-stops.txt", text);
    CHECK(failure([&] {
            generator(0, path).make(Task::needle1, 500, 0);
          }).find("expected a full stop") != std::string::npos);
  }
}

TEST_SUITE("eval/prose") {
  TEST_CASE("prose is whole sentences without digits or open slots") {
    PhiloxStream rng(11);
    const std::string prose = generate_prose(rng, 50000);
    CHECK(prose.size() >= 50000);
    CHECK(prose.find_first_of("{}0123456789") == std::string::npos);
    CHECK(prose.find("  ") == std::string::npos);
    // No sentence begins in lower case, and every paragraph ends one.
    CHECK(matches(prose, "[.?]\"? [a-z]", 0).size() == matches(prose, "\\?\" asked", 0).size());
    CHECK(matches(prose, "[^.?\"]\n\n", 0).empty());
    std::set<std::string> sentences;
    for (const auto& s : matches(prose, "[A-Z][^.]{20,}\\.", 0)) sentences.insert(s);
    CHECK(sentences.size() > 400);
  }

  TEST_CASE("the same stream gives the same prose") {
    PhiloxStream a(1), b(1), c(2);
    const std::string prose = generate_prose(a, 1000);
    CHECK(prose == generate_prose(b, 1000));
    CHECK(prose != generate_prose(c, 1000));
  }
}
