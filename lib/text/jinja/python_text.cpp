#include "text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "text/jinja/value.h"
#include "text/utf8.h"

namespace tandem::text::jinja {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
bool is_letter(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
/// str.isspace: White_Space, and the separators U+001C to U+001F.
bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }

template <class Use>
void for_each_character(std::string_view text, const Use& use) {
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) use(decode_char(text.data() + i));
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF)
    out += "SS";  // the one letter in common use whose capital is two
  else
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}
void append_lower(std::string& out, char32_t c) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}
void append_title(std::string& out, char32_t c) {
  if (c == 0xDF)
    out += "Ss";
  else
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

void require_fits(size_t bytes) {
  if (bytes > kMostBytes)
    throw Failure(
        fmt::format("the template builds a text or list of more than {} MiB", kMostBytes >> 20));
}

namespace {
constexpr size_t kMostSteps = 10'000'000;  // about half a second
thread_local size_t steps = 0;
}  // namespace

void restart_steps() { steps = 0; }

void spend(size_t more) {
  steps += more;
  if (steps > kMostSteps)
    throw Failure(
        fmt::format("the template runs more than {} million steps", kMostSteps / 1'000'000));
}

size_t n_characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return !continues_char(c); }));
}

std::string substring(std::string_view text, size_t begin, size_t end) {
  const auto offset = [&](size_t from, size_t n) {
    for (; n > 0 && from < text.size(); --n) from += utf8_length(text[from]);
    return std::min(from, text.size());
  };
  const size_t from = offset(0, begin), to = offset(from, end - begin);
  return std::string(text.substr(from, to - from));
}

void append_quoted(std::string_view text, std::string& out) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  out += quote;
  for_each_character(text, [&](char32_t c) {
    const auto k = category(c);
    const bool separates = k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP && c != ' ';
    const bool unprintable = k >= UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CN || separates;
    const auto code = static_cast<uint32_t>(c);
    if (c == static_cast<char32_t>(quote) || c == '\\')
      out.append({'\\', static_cast<char>(c)});
    else if (c == '\n' || c == '\r' || c == '\t')
      out.append({'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'});
    else if (!unprintable)
      append_utf8(out, c);
    else if (code < 0x100)
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", code);
    else if (code < 0x10000)
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
    else
      fmt::format_to(std::back_inserter(out), "\\U{:08x}", code);
  });
  out += quote;
}

std::string escaped(std::string_view text) {
  constexpr std::string_view kCharacters = "&<>'\"";
  constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  std::string out;
  for (const char c : text)
    if (const size_t at = kCharacters.find(c); at != kCharacters.npos)
      out += kEscapes[at];
    else
      out += c;
  return out;
}

std::string_view strip(std::string_view text, const std::string* characters, Side side) {
  const auto strips = [&](std::string_view c) {
    return characters == nullptr ? is_space(first_char(c))
                                 : characters->find(c) != std::string::npos;
  };
  if (side != Side::right)
    while (!text.empty() && strips(text.substr(0, utf8_length(text[0]))))
      text.remove_prefix(utf8_length(text[0]));
  if (side != Side::left)
    while (!text.empty()) {
      size_t at = text.size() - 1;
      while (continues_char(text[at])) --at;
      if (!strips(text.substr(at))) break;
      text = text.substr(0, at);
    }
  return text;
}

std::vector<std::string> split(std::string_view text, const std::string* separator, int64_t most,
                               bool from_right) {
  std::vector<std::string> parts;
  const auto splits_left = [&] {
    require_fits(parts.size() * sizeof(std::string));
    return most < 0 || std::ssize(parts) < most;
  };
  if (separator != nullptr) {
    if (separator->empty()) throw Failure("empty separator");
    for (size_t at; splits_left();
         text = from_right ? text.substr(0, at) : text.substr(at + separator->size())) {
      at = from_right ? text.rfind(*separator) : text.find(*separator);
      if (at == text.npos) break;
      parts.emplace_back(from_right ? text.substr(at + separator->size()) : text.substr(0, at));
    }
    parts.emplace_back(text);
  } else {
    const Side end = from_right ? Side::right : Side::left;
    for (text = strip(text, nullptr, end); !text.empty(); text = strip(text, nullptr, end)) {
      if (!splits_left()) {
        parts.emplace_back(text);
        break;
      }
      // The word at this end.
      size_t begin = 0, stop = text.size();
      for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
        if (!is_space(decode_char(text.data() + i))) continue;
        if (!from_right) {
          stop = i;
          break;
        }
        begin = i + utf8_length(text[i]);
      }
      parts.emplace_back(text.substr(begin, stop - begin));
      text = from_right ? text.substr(0, begin) : text.substr(stop);
    }
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = decode_char(text.data() + i);
    size_t after = i + utf8_length(text[i]);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (c == '\r' && after < text.size() && text[after] == '\n') ++after;
    if (breaks) {
      require_fits(lines.size() * sizeof(std::string));
      lines.emplace_back(text.substr(begin, (keep_ends ? after : i) - begin));
      begin = after;
    }
    i = after;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view old, std::string_view by,
                    int64_t most) {
  std::string out;
  size_t at = 0;
  for (int64_t n = 0; most < 0 || n < most; ++n) {
    if (old.empty()) {  // stands between all characters
      if (at > text.size()) break;
      out += by;
      if (at < text.size()) out += text.substr(at, utf8_length(text[at]));
      at += at < text.size() ? utf8_length(text[at]) : 1;
    } else {
      const size_t found = text.find(old, at);
      if (found == text.npos) break;
      out.append(text.substr(at, found - at)).append(by);
      at = found + old.size();
    }
    require_fits(out.size());
  }
  if (at < text.size()) out += text.substr(at);
  return out;
}

std::string upper(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) { append_upper(out, c); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  bool after_letter = false;
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const char32_t c = decode_char(text.data() + i);
    const size_t after = i + utf8_length(text[i]);
    const bool ends = after >= text.size() || !is_letter(decode_char(text.data() + after));
    c == 0x3A3 && after_letter&& ends ? append_utf8(out, 0x3C2) : append_lower(out, c);  // sigma
    after_letter = is_letter(c);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  for_each_character(text, [&](char32_t c) {
    first ? append_title(out, c) : append_lower(out, c);
    first = false;
  });
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for_each_character(
      text, [&](char32_t c) { is_upper(c) ? append_lower(out, c) : append_upper(out, c); });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for_each_character(text, [&](char32_t c) {
    inside ? append_lower(out, c) : append_title(out, c);
    inside = is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
  });
  return out;
}

bool is_all(std::string_view text, Class kind) {
  const auto is_digit = [](char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; };
  bool all = !text.empty();
  for_each_character(text, [&](char32_t c) {
    const auto k = category(c);
    const bool number = k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
    switch (kind) {
      case Class::alpha:
        all &= is_letter(c);
        break;
      case Class::digit:
        all &= is_digit(c) || (c >= 0xB2 && c <= 0xB9 && number);
        break;
      case Class::alnum:
        all &= is_letter(c) || number;
        break;
      case Class::space:
        all &= is_space(c);
        break;
      case Class::numeric:
        all &= number;
        break;
      case Class::decimal:
        all &= is_digit(c);
        break;
    }
  });
  return all;
}

bool is_cased(std::string_view text, bool upper) {
  bool any = false, other = false;
  for_each_character(text, [&](char32_t c) {
    any |= upper ? is_upper(c) : is_lower(c);
    other |= (upper ? is_lower(c) : is_upper(c)) || category(c) == UTF8PROC_CATEGORY_LT;
  });
  return any && !other;
}

std::string padded(std::string_view text, int64_t width, std::string_view fill, Side text_at) {
  const auto n = static_cast<int64_t>(n_characters(text));
  if (n_characters(fill) != 1)
    throw Failure("the fill character must be exactly one character long");
  if (width <= n) return std::string(text);
  require_fits(static_cast<size_t>(width) * fill.size());
  const int64_t room = width - n;
  // str.center puts the odd one out on the left where the width is odd.
  const int64_t left = text_at == Side::left    ? 0
                       : text_at == Side::right ? room
                                                : room / 2 + (room & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < room; ++i) out += fill;
  return out;
}

}  // namespace tandem::text::jinja
