#include "eval/task_words.h"

namespace tandem::eval {
namespace {

constexpr std::string_view kAdjectives[] = {
    "amber", "brave", "calm",   "dusty",  "eager",  "faint", "gentle", "hollow", "icy",   "jolly",
    "keen",  "lazy",  "mellow", "narrow", "orange", "proud", "quiet",  "rapid",  "silent", "tender",
    "upper", "vivid", "warm",   "yellow", "ancient", "bitter", "clever", "distant", "early", "fancy",
    "golden", "humble", "lonely", "modern", "noble", "polite", "rough", "simple", "tiny", "wild"};

constexpr std::string_view kNouns[] = {
    "anchor", "bridge", "candle", "desert", "engine", "forest", "garden", "harbor", "island",
    "jacket", "kettle", "ladder", "mirror", "needle", "orchard", "pencil", "quarry", "river",
    "saddle", "temple", "valley", "window", "basket", "copper", "dragon", "falcon", "guitar",
    "hammer", "meadow", "lantern", "market", "ocean", "planet", "rabbit", "shadow", "ticket",
    "village", "wagon", "button", "castle"};

constexpr std::string_view kListWords[] = {
    "apple",  "arm",   "bird",  "boat",  "bread", "brother", "chair", "church", "city",  "cloud",
    "coat",   "corn",  "cow",   "day",   "dog",   "door",    "dress", "egg",    "eye",   "farm",
    "field",  "fire",  "fish",  "floor", "flower", "foot",   "friend", "glass", "gold",  "grass",
    "hand",   "hat",   "heart", "hill",  "horse", "house",   "king",  "lake",   "leaf",  "light",
    "milk",   "money", "moon",  "mother", "night", "paper",  "road",  "rock",   "room",  "rose",
    "school", "sea",   "ship",  "snow",  "song",  "star",    "stone", "table",  "tree",  "water"};

}  // namespace

std::span<const std::string_view> key_adjectives() { return kAdjectives; }
std::span<const std::string_view> key_nouns() { return kNouns; }
std::span<const std::string_view> list_words() { return kListWords; }

}  // namespace tandem::eval
