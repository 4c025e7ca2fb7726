#include "eval/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tandem::eval {
namespace {

/// Words of keys ("amber-anchor") and of word lists: common, lower case, no word in both. The small
/// models met these in training and read word lists of other words badly (cwe falls to 0).
constexpr std::string_view kAdjectives[] = {
    "amber", "brave", "bright", "calm",   "crisp",  "dense",  "dusty",  "eager",  "early",
    "faint", "fresh", "gentle", "grand",  "hollow", "humble", "icy",    "inner",  "jolly",
    "keen",  "kind",  "late",   "lively", "mellow", "modern", "narrow", "noble",  "olive",
    "open",  "pale",  "proud",  "quiet",  "rapid",  "rough",  "silent", "smooth", "tender",
    "tidy",  "upper", "urban",  "vast",   "vivid",  "warm",   "wild",   "young",  "zesty"};

constexpr std::string_view kNouns[] = {
    "anchor",   "basket",  "bridge",  "candle",  "castle", "desert", "eagle",  "engine",  "farmer",
    "forest",   "garden",  "glacier", "hammer",  "harbor", "insect", "island", "jacket",  "jungle",
    "kettle",   "kitchen", "ladder",  "lantern", "market", "mirror", "needle", "network", "ocean",
    "orchard",  "pepper",  "quarry",  "river",   "rocket", "saddle", "shadow", "temple",  "tower",
    "umbrella", "valley",  "vessel",  "wagon",   "yard",   "zipper"};

template <class List>
std::string pick(PhiloxStream& rng, const List& list) {
  return std::string(list[rng.below(static_cast<uint32_t>(std::size(list)))]);
}

/// Decimal digits, the first not zero.
std::string number(PhiloxStream& rng, int n_digits) {
  std::string text(1, static_cast<char>('1' + rng.below(9)));
  while (static_cast<int>(text.size()) < n_digits) text += static_cast<char>('0' + rng.below(10));
  return text;
}

std::string key(PhiloxStream& rng) {
  const std::string adjective = pick(rng, kAdjectives);
  return adjective + "-" + pick(rng, kNouns);
}

/// Four capital letters without I and O, which look like digits.
std::string variable(PhiloxStream& rng) {
  constexpr std::string_view kLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
  std::string name;
  for (int i = 0; i < 4; ++i) name += kLetters[rng.below(static_cast<uint32_t>(kLetters.size()))];
  return name;
}

/// `n` different results of `draw`, in the order drawn.
template <class Draw>
std::vector<std::string> distinct(size_t n, const Draw& draw) {
  std::set<std::string> seen;
  std::vector<std::string> list;
  while (list.size() < n)
    if (std::string item = draw(); seen.insert(item).second) list.push_back(std::move(item));
  return list;
}

template <class T>
void shuffle(PhiloxStream& rng, std::vector<T>& list) {
  for (size_t i = list.size(); i > 1; --i)
    std::swap(list[i - 1], list[rng.below(static_cast<uint32_t>(i))]);
}

/// One of many keys is asked for.
/// lead   before `thing` in a needle; thing: what a key has, as questions and answers name it
Quiz ask_for_one(PhiloxStream& rng, const std::vector<std::string>& keys,
                 const std::vector<std::string>& values, std::string_view lead,
                 std::string_view thing) {
  Quiz quiz;
  for (size_t i = 0; i < keys.size(); ++i)
    quiz.needles.push_back(fmt::format(" {}{} {} is {}.", lead, thing, keys[i], values[i]));
  const size_t asked = rng.below(static_cast<uint32_t>(keys.size()));
  quiz.question = fmt::format("What is the {} {}?", thing, keys[asked]);
  quiz.answer_prefix = fmt::format(" The {} {} is", thing, keys[asked]);
  quiz.answer = fmt::format(" {}.", values[asked]);
  return quiz;
}

Quiz make_needles(PhiloxStream& rng, size_t n) {
  const auto keys = distinct(n, [&] { return key(rng); });
  const auto values = distinct(n, [&] { return number(rng, 7); });
  return ask_for_one(rng, keys, values, "The ", "special magic value for");
}

Quiz make_kv(PhiloxStream& rng, size_t length) {
  const size_t n = std::max<size_t>(1, length / 40);
  const auto keys = distinct(n, [&] { return fmt::format("{}-{}", key(rng), number(rng, 2)); });
  const auto values = distinct(n, [&] { return number(rng, 7); });
  Quiz quiz;
  for (size_t i = 0; i < n; ++i)
    quiz.needles.push_back(fmt::format(" {}: {}.", keys[i], values[i]));
  const size_t asked = rng.below(static_cast<uint32_t>(n));
  quiz.question = fmt::format("What is the value of {}?", keys[asked]);
  quiz.answer_prefix = fmt::format(" {}:", keys[asked]);
  quiz.answer = fmt::format(" {}.", values[asked]);
  return quiz;
}

Quiz make_vt(PhiloxStream& rng) {
  const auto names = distinct(3, [&] { return variable(rng); });
  const std::string value = number(rng, 5);
  Quiz quiz;
  quiz.needles = {fmt::format(" VAR {} = {}.", names[0], value),
                  fmt::format(" VAR {} = VAR {}.", names[1], names[0]),
                  fmt::format(" VAR {} = VAR {}.", names[2], names[1])};
  quiz.question = fmt::format("Which variables are assigned the value {}?", value);
  quiz.answer = fmt::format(" {}.", fmt::join(names, ", "));
  return quiz;
}

std::vector<std::string> common_words() {
  std::vector<std::string> words(std::begin(kAdjectives), std::end(kAdjectives));
  words.insert(words.end(), std::begin(kNouns), std::end(kNouns));
  return words;
}

/// Asks for the three most common words of a list.
Quiz word_list_quiz(const std::vector<std::string>& list, std::vector<std::string> common) {
  std::sort(common.begin(), common.end());
  Quiz quiz;
  quiz.needles = {fmt::format(" Word list: {}.", fmt::join(list, ", "))};
  quiz.question = "What are the three most common words in the list?";
  quiz.answer = fmt::format(" {}.", fmt::join(common, ", "));
  return quiz;
}

Quiz make_cwe(PhiloxStream& rng, size_t length) {
  constexpr std::ptrdiff_t kCommon = 3, kWords = 60;  // different words of a list
  const size_t n = std::min<size_t>(length / 3, 800);
  std::vector<std::string> words = common_words();
  shuffle(rng, words);
  std::vector<std::string> common(words.begin(), words.begin() + kCommon);
  const std::vector<std::string> others(words.begin() + kCommon, words.begin() + kWords);
  std::vector<std::string> list;
  for (const std::string& word : common) list.insert(list.end(), n / 8, word);
  while (list.size() < n) list.push_back(pick(rng, others));
  shuffle(rng, list);
  return word_list_quiz(list, std::move(common));
}

/// A list whose three most frequent words stand out of a Zipf tail. Unlike in RULER's task of that
/// name, code words are common words: of made-up ones no model as small as the embedded ones can
/// write any.
Quiz make_fwe(PhiloxStream& rng, size_t length) {
  constexpr size_t kFrequent = 3, kWords = 60;  // different words of a list
  const size_t n = std::min<size_t>(length / 6, 400);
  std::vector<std::string> words = common_words();
  shuffle(rng, words);
  words.resize(kWords);
  const auto weight = [](size_t rank) {
    const auto r = static_cast<double>(rank);
    return rank <= kFrequent ? std::pow(r, -0.3) : 0.72 / r;
  };
  double sum = 0;
  for (size_t rank = 1; rank <= kWords; ++rank) sum += weight(rank);
  std::vector<std::string> list;
  for (size_t rank = 1; rank <= kWords; ++rank) {
    const double times = std::round(static_cast<double>(n) * weight(rank) / sum);
    list.insert(list.end(), static_cast<size_t>(std::max(1.0, times)), words[rank - 1]);
  }
  shuffle(rng, list);
  words.resize(kFrequent);
  return word_list_quiz(list, std::move(words));
}

/// Passages that differ in one or two words: any two keys of a grid of adjectives and nouns have a
/// word in common or none, and so have the values, of two words each.
Quiz make_qa(PhiloxStream& rng, size_t length) {
  const size_t n = std::clamp<size_t>(length / 60, 4, 1600);  // there are 1,890 pairs of words
  const auto side = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(n))));
  const auto adjectives = distinct(side, [&] { return pick(rng, kAdjectives); }),
             nouns = distinct(side, [&] { return pick(rng, kNouns); });
  std::vector<std::string> keys;
  for (const std::string& adjective : adjectives)
    for (const std::string& noun : nouns) keys.push_back(adjective + "-" + noun);
  shuffle(rng, keys);
  keys.resize(n);
  const auto values = distinct(n, [&] { return pick(rng, kAdjectives) + " " + pick(rng, kNouns); });
  return ask_for_one(rng, keys, values, "Remember that the ", "secret of");
}

}  // namespace

Quiz make_quiz(PhiloxStream& rng, Task task, size_t length) {
  switch (task) {
    case Task::needle1:
      return make_needles(rng, 1);
    case Task::needle8:
      return make_needles(rng, 8);
    case Task::kv:
      return make_kv(rng, length);
    case Task::vt:
      return make_vt(rng);
    case Task::cwe:
      return make_cwe(rng, length);
    case Task::fwe:
      return make_fwe(rng, length);
    case Task::qa:
      return make_qa(rng, length);
  }
  return {};
}

}  // namespace tandem::eval
