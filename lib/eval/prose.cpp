#include "eval/tasks.h"

#include <iterator>
#include <string_view>

#include "base/check.h"

namespace tandem::eval {
namespace {

using std::string_view;

struct Person {
  string_view name, subject, object, possessive;
};

constexpr Person kPeople[] = {
    {"Martha", "she", "her", "her"},          {"Old Peter", "he", "him", "his"},
    {"the doctor", "she", "her", "her"},      {"the ferryman", "he", "him", "his"},
    {"Eleanor", "she", "her", "her"},         {"Mr. Hale", "he", "him", "his"},
    {"the schoolmaster", "he", "him", "his"}, {"the widow", "she", "her", "her"},
    {"Thomas", "he", "him", "his"},           {"my aunt", "she", "her", "her"},
    {"the captain", "he", "him", "his"},      {"the baker's daughter", "she", "her", "her"},
    {"young Arthur", "he", "him", "his"},     {"the gardener", "he", "him", "his"},
    {"Miss Wren", "she", "her", "her"},       {"the miller", "he", "him", "his"},
    {"Harriet", "she", "her", "her"},         {"the clerk", "he", "him", "his"},
    {"the stranger", "he", "him", "his"},     {"my grandmother", "she", "her", "her"}};

constexpr string_view kPlaces[] = {
    "the harbour",     "the old mill",     "the market square",   "the church",
    "the river",       "the orchard",      "the railway station", "the edge of the forest",
    "the inn",         "the lower meadow", "the lighthouse",      "the stone bridge",
    "the post office", "the garden",       "the top of the hill", "the boathouse",
    "the schoolroom",  "the quarry",       "the kitchen",         "the crossroads",
    "the stables",     "the shore"};

constexpr string_view kThings[] = {
    "a lantern",          "an old map",           "a basket of apples",
    "a letter",           "a bundle of firewood", "a book",
    "a pair of boots",    "a brass key",          "a loaf of bread",
    "an umbrella",        "a coil of rope",       "a wooden box",
    "a bunch of flowers", "a heavy coat",         "a small clock",
    "a jar of honey",     "a fishing net",        "a broken chair",
    "a silver spoon",     "a bag of seed",        "an empty bottle",
    "a piece of cloth"};

constexpr string_view kTimes[] = {"in the morning",
                                  "before noon",
                                  "late in the afternoon",
                                  "at dusk",
                                  "on Sunday",
                                  "that evening",
                                  "in the first week of spring",
                                  "when the harvest was over",
                                  "after supper",
                                  "at daybreak",
                                  "towards the end of winter",
                                  "on market day",
                                  "during the long summer",
                                  "an hour later",
                                  "the next day",
                                  "in the middle of the night",
                                  "before the rain came",
                                  "as soon as it was light"};

constexpr string_view kManners[] = {"slowly",
                                    "without a word",
                                    "with great care",
                                    "in good spirits",
                                    "as quickly as possible",
                                    "with some difficulty",
                                    "in silence",
                                    "for the last time",
                                    "quite alone",
                                    "against all advice",
                                    "with a quiet smile",
                                    "as usual",
                                    "rather unwillingly",
                                    "to everyone's surprise"};

constexpr string_view kWeather[] = {"The wind had turned to the north",
                                    "A thin rain was falling",
                                    "The sky was clear and cold",
                                    "Fog lay over the fields",
                                    "The sun stood high above the roofs",
                                    "Snow had fallen in the night",
                                    "The air smelled of hay",
                                    "Clouds were gathering in the west",
                                    "The evening was warm and still",
                                    "Frost covered the windows",
                                    "A light breeze moved the leaves",
                                    "Thunder rolled far away",
                                    "The tide was going out",
                                    "The moon had not yet risen"};

constexpr string_view kScenes[] = {
    "the streets were almost empty",      "smoke rose straight from the chimneys",
    "the children had gone home",         "a dog was barking somewhere",
    "the lamps were being lit",           "nobody seemed to be in a hurry",
    "the boats lay close together",       "the road was deep in mud",
    "the birds had fallen silent",        "the shops were closing one after another",
    "the bells were ringing for service", "the last carts rolled by",
    "the grass was wet underfoot",        "the fires burned low"};

constexpr string_view kAdjectives[] = {"pleasant",
                                       "tired",
                                       "hopeful",
                                       "uneasy",
                                       "cheerful",
                                       "patient",
                                       "lonely",
                                       "proud",
                                       "curious",
                                       "grateful",
                                       "restless",
                                       "certain of success",
                                       "anxious about the journey",
                                       "glad of the company"};

constexpr string_view kThoughts[] = {"the work would be finished in time",
                                     "there was nothing more to be done",
                                     "the house had never looked so large",
                                     "it was better to wait",
                                     "the winter would be a hard one",
                                     "somebody ought to speak first",
                                     "the road was longer than people said",
                                     "a promise should be kept",
                                     "the garden needed more water",
                                     "every season had its own beauty",
                                     "the price was far too high",
                                     "old friends were the best friends",
                                     "no harm could come of it",
                                     "the truth would be known sooner or later"};

constexpr string_view kActs[] = {"mended the fence",
                                 "wrote a long letter",
                                 "told the story again",
                                 "closed the shutters",
                                 "counted the money twice",
                                 "watched the boats come in",
                                 "made tea for everybody",
                                 "carried water from the well",
                                 "swept the floor",
                                 "read aloud from the newspaper",
                                 "picked the last of the plums",
                                 "sharpened the tools",
                                 "fed the horses",
                                 "lit the stove",
                                 "walked round the garden",
                                 "played the fiddle",
                                 "waited by the gate",
                                 "repaired the roof"};

// {N} the person's name, {S} {O} {P} pronouns (subject, object, possessive), {p} place, {t} thing,
// {w} when, {m} manner, {W} weather, {s} scene, {a} adjective, {h} thought, {c} act, {M} someone
// else.
constexpr string_view kSentences[] = {
    "{S} walked to {p} {w}, carrying {t}.",
    "{W}, and {s}.",
    "{w}, {S} {c} and then {c}.",
    "{S} had left {t} at {p}, and went back for it {m}.",
    "It seemed to {O} that {h}.",
    "{S} was {a}, though {S} would not have said so.",
    "When {M} came to {p}, {S} {c} {m}.",
    "\"I thought that {h},\" said {M}.",
    "There was {t} on the table, and beside it lay {t}.",
    "Between {p} and {p} {S} met {M}, who was carrying {t}.",
    "{W}; {s}, and {S} felt {a}.",
    "Nobody at {p} could remember where {t} had come from.",
    "{M} {c} {w}, while {S} {c}.",
    "If {M} had not been so {a}, {S} might have stayed at {p}.",
    "{P} brother had once bought {t} at {p} for very little.",
    "{S} often said that {h}, and {M} agreed {m}.",
    "Then {S} {c}, because {s}.",
    "What {S} wanted most was {t}.",
    "{w}, {s}.",
    "\"Will you come with me to {p}?\" asked {M}.",
    "{S} put {t} away {m} and {c}.",
    "The way from {p} to {p} was short, but {s}.",
    "After that {S} never went to {p} without {t}.",
    "{M} had heard that {h}, and told {O} so {w}.",
};

constexpr string_view kOpenings[] = {
    "{N} lived not far from {p}.",
    "{W} when {N} came to {p}.",
    "{w}, {N} {c}.",
    "In those days {N} was seldom seen at {p}.",
    "{N} had been {a} ever since the visit to {p}.",
    "People said of {N} that nobody else {c} so {m}.",
    "For many years {N} kept {t} at {p}.",
    "{N} and {M} met at {p} {w}.",
};

template <class T, size_t n>
const T& pick(PhiloxStream& rng, const T (&list)[n]) {
  return list[rng.below(static_cast<uint32_t>(n))];
}

/// The words for one slot of a template.
string_view fill(PhiloxStream& rng, char slot, const Person& person, const Person& other) {
  switch (slot) {
    case 'N':
      return person.name;
    case 'S':
      return person.subject;
    case 'O':
      return person.object;
    case 'P':
      return person.possessive;
    case 'M':
      return other.name;
    case 'p':
      return pick(rng, kPlaces);
    case 't':
      return pick(rng, kThings);
    case 'w':
      return pick(rng, kTimes);
    case 'm':
      return pick(rng, kManners);
    case 'W':
      return pick(rng, kWeather);
    case 's':
      return pick(rng, kScenes);
    case 'a':
      return pick(rng, kAdjectives);
    case 'h':
      return pick(rng, kThoughts);
    case 'c':
      return pick(rng, kActs);
    default:
      break;
  }
  TANDEM_CHECK(false, "unknown slot {} in a sentence", slot);
  return {};
}

void append_sentence(PhiloxStream& rng, string_view form, const Person& person, std::string& text) {
  const Person* other = &pick(rng, kPeople);
  while (other == &person) other = &pick(rng, kPeople);
  const size_t begin = text.size();
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] != '{') {
      text += form[i];
      continue;
    }
    const size_t at = text.size();
    text += fill(rng, form[i + 1], person, *other);
    if (at == begin && text[at] >= 'a' && text[at] <= 'z')
      text[at] = static_cast<char>(text[at] - 32);
    i += 2;
  }
}

}  // namespace

std::string generate_prose(PhiloxStream& rng, size_t min_bytes) {
  std::string text;
  while (text.size() < min_bytes) {
    if (!text.empty()) text += "\n\n";
    const Person& person = pick(rng, kPeople);
    append_sentence(rng, pick(rng, kOpenings), person, text);
    for (uint32_t n = 2 + rng.below(5); n > 0; --n) {
      text += ' ';
      append_sentence(rng, pick(rng, kSentences), person, text);
    }
  }
  return text;
}

}  // namespace tandem::eval
