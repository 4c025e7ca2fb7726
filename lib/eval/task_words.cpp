#include "eval/task_words.h"

namespace tandem::eval {
namespace {

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

}  // namespace

std::span<const std::string_view> key_adjectives() { return kAdjectives; }
std::span<const std::string_view> key_nouns() { return kNouns; }

}  // namespace tandem::eval
