#include "io/json.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/quote.h"
#include "io/text_file.h"

namespace tandem::io {
namespace {

/// Feeds the parser and remembers how far it has read, which its events do not report.
class TrackedText {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedText(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  TrackedText& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  bool operator==(const TrackedText& other) const { return at_ == other.at_; }
  bool operator!=(const TrackedText& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

/// Turns the parser's events into a document. The library's own builder keeps the last of two equal
/// keys and follows any depth.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& where, const JsonOptions& options)
      : furthest(text.data()), text_(text), where_(where), options_(options) {}

  const char* furthest;  // one past the last character the parser has seen
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool value) override { return put(value) != nullptr; }
  bool number_integer(int64_t value) override { return put(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return put(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return put(value) != nullptr; }
  bool string(std::string& value) override { return put(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }  // never sent for text
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto [it, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new && !options_.allow_duplicate_keys)
      throw error_at(key_start(), fmt::format("key {} appears twice", quote(name)))
          .hint("remove one of the two");
    member_ = &it->second;
    return true;
  }

  bool parse_error(size_t position, const std::string& token, const Json::exception& e) override {
    const size_t offset = std::min(position == 0 ? 0 : position - 1, text_.size());
    throw error_at(offset, "malformed JSON " + reason(e.what(), token));
  }

  Error error_at(size_t offset, std::string message) const {
    int line = options_.first_line, column = 1;
    for (const char c : text_.substr(0, offset)) {
      if (c == '\n') {
        ++line;
        column = 1;
      } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // count characters, not bytes
        ++column;
      }
    }
    return {ErrorKind::input, fmt::format("{}:{}:{}", where_, line, column), std::move(message)};
  }

 private:
  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (!open_.back()->is_array()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& items = open_.back()->get_ref<Json::array_t&>();
    items.push_back(std::move(value));
    return &items.back();
  }

  bool open(Json container) {
    if (open_.size() >= static_cast<size_t>(options_.max_depth))
      throw error_at(offset() - 1, fmt::format("nested deeper than {} levels", options_.max_depth));
    open_.push_back(put(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  size_t offset() const { return static_cast<size_t>(furthest - text_.data()); }

  /// Position of the opening quote of the string that has just been read.
  size_t key_start() const {
    size_t i = offset() - 1;  // its closing quote
    while (i > 0) {
      i = text_.rfind('"', i - 1);
      if (i == std::string_view::npos) return 0;
      size_t n_escapes = 0;
      while (n_escapes < i && text_[i - 1 - n_escapes] == '\\') ++n_escapes;
      if (n_escapes % 2 == 0) return i;
    }
    return 0;
  }

  /// The library's sentence without its own prefix and without the excerpt, which may be the whole
  /// file: "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while
  /// parsing value - invalid literal; last read: 'x'; expected y".
  static std::string reason(std::string what, const std::string& token) {
    if (const size_t i = what.find("] "); i != std::string::npos) what.erase(0, i + 2);
    if (what.starts_with("parse error at"))
      if (const size_t i = what.find(": "); i != std::string::npos) what.erase(0, i + 2);
    if (what.starts_with("syntax error ")) what.erase(0, 13);
    constexpr std::string_view kExcerpt = "; last read: '";
    if (const size_t from = what.find(kExcerpt); from != std::string::npos)
      what.erase(from, kExcerpt.size() + token.size() + 1);
    constexpr size_t kLongest = 160;
    if (what.size() > kLongest) what.replace(kLongest, std::string::npos, "...");
    return what;
  }

  std::string_view text_;
  const std::string& where_;
  JsonOptions options_;
  Json root_;
  std::vector<Json*> open_;  // enclosing containers; a parent does not grow while a child is open
  Json* member_ = nullptr;   // where the value of the last key goes
};

[[noreturn]] void wrong_type(const std::string& what, const std::string& where,
                             std::string_view expected, const Json& found) {
  throw input_error(where, "{}: expected {}, found {}", what, expected, describe(found));
}

std::string key_text(const char* key) { return fmt::format("key '{}'", key); }

/// The member, or a null pointer if the key is absent or null.
const Json* find_member(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) wrong_type("document", where, "an object", object);
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const Json& get_member(const Json& object, const char* key, const std::string& where,
                       std::string_view expected) {
  if (!object.is_object()) wrong_type("document", where, "an object", object);
  const auto it = object.find(key);
  if (it == object.end())
    throw input_error(where, "{} is missing, expected {}", key_text(key), expected);
  return *it;
}

std::string range_text(int64_t min, int64_t max) {
  if (min == kAnyMin && max == kAnyMax) return "an integer";
  if (max == kAnyMax) return fmt::format("an integer >= {}", min);
  return fmt::format("an integer from {} to {}", min, max);
}

double as_double(const Json& value, const char* key, const std::string& where) {
  if (!value.is_number()) wrong_type(key_text(key), where, "a number", value);
  return value.get<double>();
}

bool as_bool(const Json& value, const char* key, const std::string& where) {
  if (!value.is_boolean()) wrong_type(key_text(key), where, "true or false", value);
  return value.get<bool>();
}

const Json& as_object(const Json& value, const char* key, const std::string& where) {
  if (!value.is_object()) wrong_type(key_text(key), where, "an object", value);
  return value;
}

const Json& as_array(const Json& value, const char* key, const std::string& where) {
  if (!value.is_array()) wrong_type(key_text(key), where, "an array", value);
  return value;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonOptions& options) {
  text = text_in(text, where);
  Builder builder(text, where, options);
  // The library takes a zero byte for the end of the text and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw builder.error_at(zero, "malformed JSON: a zero byte");
  const TrackedText begin(text.data(), &builder.furthest);
  const TrackedText end(text.data() + text.size(), &builder.furthest);
  Json::sax_parse(begin, end, &builder);
  return builder.take();
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& where,
                               const JsonOptions& options) {
  parse_json(text, where, options);  // refuses malformed text, with its place
  return OrderedJson::parse(text_in(text, where));
}

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::string:
      return "the string " + quote(value.get_ref<const std::string&>(), 60);
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "the number " + value.dump();
    case Json::value_t::array:
      return fmt::format("an array of {} item{}", value.size(), value.size() == 1 ? "" : "s");
    case Json::value_t::object:
      return "an object";
    default:
      return "binary data";
  }
}

int64_t as_int(const Json& value, const std::string& what, const std::string& where, int64_t min,
               int64_t max) {
  if (!value.is_number_integer()) wrong_type(what, where, range_text(min, max), value);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kAnyMax))
    wrong_type(what, where, range_text(min, max), value);
  const int64_t number = value.get<int64_t>();
  if (number < min || number > max) wrong_type(what, where, range_text(min, max), value);
  return number;
}

const std::string& as_string(const Json& value, const std::string& what, const std::string& where) {
  if (!value.is_string()) wrong_type(what, where, "a string", value);
  return value.get_ref<const std::string&>();
}

int64_t get_int(const Json& object, const char* key, const std::string& where, int64_t min,
                int64_t max) {
  return as_int(get_member(object, key, where, range_text(min, max)), key_text(key), where, min,
                max);
}

double get_double(const Json& object, const char* key, const std::string& where) {
  return as_double(get_member(object, key, where, "a number"), key, where);
}

bool get_bool(const Json& object, const char* key, const std::string& where) {
  return as_bool(get_member(object, key, where, "true or false"), key, where);
}

const std::string& get_string(const Json& object, const char* key, const std::string& where) {
  return as_string(get_member(object, key, where, "a string"), key_text(key), where);
}

const Json& get_object(const Json& object, const char* key, const std::string& where) {
  return as_object(get_member(object, key, where, "an object"), key, where);
}

const Json& get_array(const Json& object, const char* key, const std::string& where) {
  return as_array(get_member(object, key, where, "an array"), key, where);
}

std::optional<int64_t> find_int(const Json& object, const char* key, const std::string& where,
                                int64_t min, int64_t max) {
  const Json* value = find_member(object, key, where);
  if (value == nullptr) return std::nullopt;
  return as_int(*value, key_text(key), where, min, max);
}

std::optional<double> find_double(const Json& object, const char* key, const std::string& where) {
  const Json* value = find_member(object, key, where);
  if (value == nullptr) return std::nullopt;
  return as_double(*value, key, where);
}

std::optional<bool> find_bool(const Json& object, const char* key, const std::string& where) {
  const Json* value = find_member(object, key, where);
  if (value == nullptr) return std::nullopt;
  return as_bool(*value, key, where);
}

std::optional<std::string> find_string(const Json& object, const char* key,
                                       const std::string& where) {
  const Json* value = find_member(object, key, where);
  if (value == nullptr) return std::nullopt;
  return as_string(*value, key_text(key), where);
}

const Json* find_object(const Json& object, const char* key, const std::string& where) {
  const Json* value = find_member(object, key, where);
  return value == nullptr ? nullptr : &as_object(*value, key, where);
}

const Json* find_array(const Json& object, const char* key, const std::string& where) {
  const Json* value = find_member(object, key, where);
  return value == nullptr ? nullptr : &as_array(*value, key, where);
}

void check_format(const Json& value, const char* format, const std::string& where) {
  if (!value.is_object())
    throw input_error(where, "expected an object of format '{}', found {}", format,
                      describe(value));
  const std::string& found = get_string(value, "format", where);
  if (found != format)
    throw input_error(where, "expected format '{}', found {}", format, quote(found));
}

}  // namespace tandem::io
