#include "text/char_class.h"

#include <string>

#include "text/regex.h"
#include "text/utf8.h"

namespace tandem::text {

const CharClasses& CharClasses::get() {
  static const CharClasses classes;
  return classes;
}

/// Lets Regex find the runs of each class in a text of all characters of the plane.
const CharClasses::Plane& CharClasses::make_plane(char32_t number) const {
  const std::scoped_lock lock(mutex_);
  if (owned_[number]) return *owned_[number];
  std::string all;
  for (char32_t c = number << 16; c < (number + 1) << 16; ++c)
    if (c < 0xD800 || c > 0xDFFF) append_utf8(all, c);  // surrogates are no characters
  auto plane = std::make_unique<Plane>();
  RegexScratch scratch;
  const auto mark = [&](const char* runs, CharClass char_class) {
    const Regex regex(runs, "character classes");
    Regex::Match match{};
    for (size_t at = 0; regex.find(all, at, scratch, match); at = match.end)
      for (size_t i = match.begin; i < match.end; i += utf8_length(all[i]))
        (*plane)[decode_char(all.data() + i) & 0xFFFF] = char_class;
  };
  mark(R"(\p{L}+)", CharClass::letter);
  mark(R"(\p{N}+)", CharClass::number);
  mark(R"(\s+)", CharClass::space);
  planes_[number].store(plane.get(), std::memory_order_release);
  owned_[number] = std::move(plane);
  return *owned_[number];
}

}  // namespace tandem::text
