#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Python's str methods on UTF-8. Offsets and lengths count characters.
namespace tandem::text::jinja {

/// Limit on each text or list that a template builds.
inline constexpr size_t kMostBytes = size_t{64} << 20;
/// errors   Failure: more than kMostBytes
void require_fits(size_t bytes);

/// Counts work, which is bounded by time: a step takes some 50 ns. Each thread has its own count.
/// errors   Failure: more than kMostSteps since restart_steps()
void spend(size_t steps);
void restart_steps();

size_t n_characters(std::string_view text);
std::string substring(std::string_view text, size_t begin, size_t end);

/// repr() of a string.
void append_quoted(std::string_view text, std::string& out);

/// With & < > ' and " as HTML writes them.
std::string escaped(std::string_view text);

enum class Side : uint8_t { left = 1, right = 2, both = 3 };
/// Without these characters at its ends; white space where `characters` is null.
std::string_view strip(std::string_view text, const std::string* characters, Side side);

/// Parts between separators: runs of white space where `separator` is null.
/// most     splits at most; negative: all
std::vector<std::string> split(std::string_view text, const std::string* separator, int64_t most,
                               bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string replace(std::string_view text, std::string_view old, std::string_view by, int64_t most);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
/// Every run of letters with a capital first.
std::string title(std::string_view text);

/// All characters are of this kind, and there is at least one.
enum class Class : uint8_t { alpha, digit, alnum, space, numeric, decimal };
bool is_all(std::string_view text, Class kind);
/// At least one letter has case, and all that have are of this one.
bool is_cased(std::string_view text, bool upper);

/// Padded to `width` characters.
std::string padded(std::string_view text, int64_t width, std::string_view fill, Side text_at);

}  // namespace tandem::text::jinja
