#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace tandem::text::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

std::string with_plain_breaks(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_breaks(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_root();
    add(TokenKind::end, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(size_t at, const std::string& message) const {
    throw SyntaxError(position(at), message);
  }

  /// Tokens come in rising order, so counting goes on from the last one.
  Position position(size_t at) const {
    if (at < counted_) {
      counted_ = 0;
      counted_position_ = {};
    }
    for (; counted_ < at; ++counted_) {
      if (source_[counted_] == '\n')
        counted_position_ = {counted_position_.line + 1, 1};
      else if (!continues_char(source_[counted_]))
        ++counted_position_.column;
    }
    return counted_position_;
  }

  void add(TokenKind kind, std::string text, Value number = {}) {
    tokens_.push_back({kind, std::move(text), std::move(number), position(at_)});
  }
  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::data, std::string(text));
  }

  bool next_is(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void skip_space() {
    while (at_ < source_.size() &&
           strip(source_.substr(at_, utf8_length(source_[at_])), nullptr, Side::both).empty())
      at_ += utf8_length(source_[at_]);
  }

  /// Text in front of a tag. `-` strips all white space; without a sign the white space of a
  /// block's own line goes, if nothing else precedes the tag there.
  std::string_view before_tag(std::string_view text, char sign, bool print) const {
    if (sign == '-') return strip(text, nullptr, Side::right);
    if (sign == '+' || print) return text;
    const size_t line = text.rfind('\n') + 1;
    const bool begins_line = line > 0 || line_starting_;
    return begins_line && strip(text.substr(line), nullptr, Side::left).empty()
               ? text.substr(0, line)
               : text;
  }

  /// After `%}` or `#}`, whose sign has been read: `-` strips white space, none one line break.
  void end_tag(char sign) {
    if (sign == '-') skip_space();
    if (sign == 0 && at_ < source_.size() && source_[at_] == '\n') ++at_;
    line_starting_ = source_[at_ - 1] == '\n';
  }

  char sign() {
    const char c = at_ < source_.size() ? source_[at_] : '\0';
    if (c != '-' && c != '+') return 0;
    ++at_;
    return c;
  }

  void read_root() {
    size_t tag = at_;
    do {
      tag = source_.find('{', tag);
    } while (tag != std::string::npos && tag + 1 < source_.size() &&
             std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos && ++tag > 0);
    if (tag == std::string::npos || tag + 1 >= source_.size()) {
      add_data(std::string_view(source_).substr(at_));
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const size_t after = tag + 2;
    const char s = after < source_.size() && (source_[after] == '-' || source_[after] == '+')
                       ? source_[after]
                       : '\0';
    add_data(before_tag(text, s, kind == '{'));
    at_ = after + (s != 0 ? 1 : 0);
    if (kind == '#')
      read_comment(tag);
    else if (kind == '%' && try_raw(tag))
      return;
    else
      read_tag(tag, kind == '%');
  }

  void read_comment(size_t begin) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail(begin, "expected '#}' at the end of a comment, found none");
    const char c = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    end_tag(c == '-' || c == '+' ? c : '\0');
  }

  /// `{% raw %} ... {% endraw %}`: its text is written as it is.
  bool try_raw(size_t begin) {
    const size_t start = at_;
    skip_space();
    if (!next_is("raw")) return at_ = start, false;
    at_ += 3;
    skip_space();
    const bool strips = next_is("-%}");
    if (!strips && !next_is("%}")) return at_ = start, false;
    at_ += strips ? 3 : 2;
    if (strips) skip_space();
    line_starting_ = source_[at_ - 1] == '\n';
    const size_t text_begin = at_;
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      at_ = tag + 2;
      const char before = sign();
      skip_space();
      if (!next_is("endraw")) continue;
      at_ += 6;
      skip_space();
      const char after = sign();
      if (!next_is("%}")) continue;
      at_ += 2;
      add_data(before_tag(std::string_view(source_).substr(text_begin, tag - text_begin), before,
                          false));
      end_tag(after);
      return true;
    }
    if (text_begin == source_.size()) return true;  // which Jinja allows
    fail(begin, "expected {% endraw %} after {% raw %}, found none");
  }

  void read_tag(size_t begin, bool block) {
    const std::string_view close = block ? "%}" : "}}";
    add(block ? TokenKind::block_begin : TokenKind::print_begin, {});
    std::string open;  // brackets that are open
    while (true) {
      skip_space();
      if (at_ >= source_.size())
        fail(begin, fmt::format("expected '{}' at the end of a tag, found none", close));
      const char s = source_[at_];
      const bool has_sign = (s == '-' || (s == '+' && block)) &&
                            std::string_view(source_).substr(at_ + 1).starts_with(close);
      if (open.empty() && (has_sign || next_is(close))) {
        add(block ? TokenKind::block_end : TokenKind::print_end, {});
        at_ += has_sign ? 3 : 2;
        if (block)
          end_tag(has_sign ? s : '\0');
        else if (has_sign)
          skip_space();
        line_starting_ = source_[at_ - 1] == '\n';
        return;
      }
      if (begins_name(s))
        read_name();
      else if (is_digit(s))
        read_number();
      else if (s == '\'' || s == '"')
        read_string();
      else
        read_operator(open);
    }
  }

  void read_name() {
    const size_t begin = at_;
    size_t end = at_;
    while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenKind::name, source_.substr(begin, end - begin));
    at_ = end;
  }

  void read_number() {
    const size_t begin = at_;
    size_t end = at_;
    std::string digits;
    const auto take = [&](auto fits) {
      while (end < source_.size() && (fits(source_[end]) || source_[end] == '_'))
        if (source_[end++] != '_') digits += source_[end - 1];
    };
    int base = 10;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char letter = static_cast<char>(source_[at_ + 1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base != 10) end += 2;
    }
    if (base != 10)
      take([](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); });
    else
      take(is_digit);
    bool real = false;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 has two items
    const auto digit_at = [&](size_t i) { return i < source_.size() && is_digit(source_[i]); };
    if (base == 10 && !after_dot && end < source_.size() && source_[end] == '.' &&
        digit_at(end + 1)) {
      real = true;
      digits += source_[end++];
      take(is_digit);
    }
    if (base == 10 && !after_dot && end < source_.size() && (source_[end] | 0x20) == 'e') {
      const bool has_sign =
          end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+');
      if (digit_at(end + 1 + (has_sign ? 1 : 0))) {
        real = true;
        digits += 'e';
        if (has_sign && source_[end + 1] == '-') digits += '-';
        end += has_sign ? 2 : 1;
        take(is_digit);
      }
    }
    const char *first = digits.data(), *last = first + digits.size();
    double value = 0;
    int64_t whole = 0;
    if (!real && base == 10 && digits[0] == '0' && digits.find_first_not_of('0') != digits.npos)
      fail(begin, "expected an integer without a leading zero");
    if (real)
      value = std::strtod(digits.c_str(), nullptr);
    else if (const auto [stop, error] = std::from_chars(first, last, whole, base);
             error != std::errc() || stop != last)
      fail(begin, fmt::format("the integer {} cannot be read, or is beyond 64 bits",
                              source_.substr(begin, end - begin)));
    add(TokenKind::number, {}, real ? Value(value) : Value(whole));
    at_ = end;
  }

  uint32_t read_code(size_t begin, size_t& i, size_t n) {
    uint32_t code = 0;
    const char* first = source_.data() + i;
    if (i + n > source_.size() || std::from_chars(first, first + n, code, 16).ptr != first + n)
      fail(begin, fmt::format("expected {} hexadecimal digits in an escape of a string", n));
    i += n;
    return code;
  }

  void read_string() {
    const size_t begin = at_;
    const char quote = source_[at_];
    std::string out;
    size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      const char c = source_[i++];
      if (c != '\\' || i >= source_.size()) {
        out += c;
        continue;
      }
      const char e = source_[i++];
      constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeans = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t at = kLetters.find(e); at != kLetters.npos) {
        out += kMeans[at];
      } else if (e == '\n') {
      } else if (e == 'x' || e == 'u' || e == 'U') {
        const uint32_t code = read_code(begin, i, e == 'x' ? 2 : e == 'u' ? 4 : 8);
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
          fail(begin, "expected a character's code in an escape of a string");
        append_utf8(out, code);
      } else if (e >= '0' && e <= '7') {
        uint32_t code = static_cast<uint32_t>(e - '0');
        for (int n = 0; n < 2 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7'; ++n)
          code = code * 8 + static_cast<uint32_t>(source_[i++] - '0');
        append_utf8(out, code);
      } else if (e == 'N') {
        fail(begin, "the escape \\N in a string is not supported");
      } else {
        out.append({'\\', e});
      }
    }
    if (i >= source_.size()) fail(begin, "expected a quote at the end of a string, found none");
    add(TokenKind::string, std::move(out));
    at_ = i + 1;
  }

  void read_operator(std::string& open) {
    constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* it = std::ranges::find_if(kOperators, [&](auto op) { return next_is(op); });
    if (it == kOperators.end())
      fail(at_, fmt::format("unexpected character '{}'",
                            source_.substr(at_, utf8_length(source_[at_]))));
    const char c = it->front();
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (open.size() > 200) fail(at_, "brackets are nested deeper than 200 levels");
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(at_, fmt::format("unexpected '{}'", c));
      if (open.back() != c)
        fail(at_, fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    add(TokenKind::op, std::string(*it));
    at_ += it->size();
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the next character begins a line
  mutable size_t counted_ = 0;
  mutable Position counted_position_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace tandem::text::jinja
