#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace tandem::io {

struct JsonOptions {
  int max_depth = 128;                // nesting; later recursive walks then fit any stack
  bool allow_duplicate_keys = false;  // true: the last one wins, as in Python
  int first_line = 1;                 // line number of the text's first line, for JSONL
};

/// One JSON document (RFC 8259) from text_in these bytes; nothing but white space may follow it.
/// errors   those of text_in; kind input at `where:line:column`: syntax, invalid UTF-8, a number beyond double,
///          nesting deeper than the limit, a key given twice
Json parse_json(std::string_view text, const std::string& where, const JsonOptions& options = {});

/// The same with the keys of objects in their order.
OrderedJson parse_ordered_json(std::string_view text, const std::string& where,
                               const JsonOptions& options = {});

/// What a value is, for messages: "the string \"abc\"", "the number 2.5", "an array of 3 items".
std::string describe(const Json& value);

/// errors   kind input at `where`: the value is no object whose member `format` is this one
void check_format(const Json& value, const char* format, const std::string& where);

// Typed members of an object. get_*: the key must be there. find_*: absent and null give nullopt.
// errors   kind input at `where`: names the key, the expected type and range, and the value found.
//          An integer is never made from a fraction, a number never from a string.

constexpr int64_t kAnyMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kAnyMax = std::numeric_limits<int64_t>::max();

int64_t get_int(const Json& object, const char* key, const std::string& where,
                int64_t min = kAnyMin, int64_t max = kAnyMax);
double get_double(const Json& object, const char* key, const std::string& where);
bool get_bool(const Json& object, const char* key, const std::string& where);
const std::string& get_string(const Json& object, const char* key, const std::string& where);
const Json& get_object(const Json& object, const char* key, const std::string& where);
const Json& get_array(const Json& object, const char* key, const std::string& where);

std::optional<int64_t> find_int(const Json& object, const char* key, const std::string& where,
                                int64_t min = kAnyMin, int64_t max = kAnyMax);
std::optional<double> find_double(const Json& object, const char* key, const std::string& where);
std::optional<bool> find_bool(const Json& object, const char* key, const std::string& where);
std::optional<std::string> find_string(const Json& object, const char* key,
                                       const std::string& where);
/// Null pointer when absent or null.
const Json* find_object(const Json& object, const char* key, const std::string& where);
const Json* find_array(const Json& object, const char* key, const std::string& where);

/// A value outside any object, such as an array element; `what` names it in the message.
int64_t as_int(const Json& value, const std::string& what, const std::string& where,
               int64_t min = kAnyMin, int64_t max = kAnyMax);
const std::string& as_string(const Json& value, const std::string& what, const std::string& where);

}  // namespace tandem::io
