#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "text/utf8.h"

namespace tandem::text {
namespace {

/// Stable order of combining classes within each run of marks. utf8proc_decompose does this by
/// exchanging neighbours, quadratic on a long run, hence this own loop around its tables.
void order_marks(std::vector<utf8proc_int32_t>& chars) {
  struct Mark {
    utf8proc_propval_t combining_class;
    utf8proc_int32_t c;
  };
  std::vector<Mark> run;
  for (size_t i = 0; i < chars.size(); ++i) {
    run.clear();
    const size_t begin = i;
    for (; i < chars.size(); ++i) {
      const auto combining_class = utf8proc_get_property(chars[i])->combining_class;
      if (combining_class == 0) break;
      run.push_back({combining_class, chars[i]});
    }
    if (run.size() < 2) continue;
    std::ranges::stable_sort(run, {}, &Mark::combining_class);
    for (size_t k = 0; k < run.size(); ++k) chars[begin + k] = run[k].c;
  }
}

utf8proc_option_t options_of(NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

/// The plain algorithm: decompose, order, compose. `chars` is a buffer.
void append_normalized(std::string_view text, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& chars, std::string& out) {
  constexpr utf8proc_ssize_t kLongest = 32;  // the longest decomposition, of U+FDFA, has 18
  utf8proc_int32_t parts[kLongest];
  chars.clear();
  for (size_t i = 0; i < text.size(); i += utf8_length(text[i])) {
    const auto c = static_cast<utf8proc_int32_t>(first_char(text.substr(i, 4)));
    const auto n = utf8proc_decompose_char(c, parts, kLongest, options, nullptr);
    TANDEM_CHECK(n >= 0 && n <= kLongest, "the decomposition of U+{:04X} has an invalid length, {}",
                 c, n);
    chars.insert(chars.end(), parts, parts + n);
  }
  order_marks(chars);
  const auto n =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), options);
  TANDEM_CHECK(n >= 0, "normalisation failed: {}", utf8proc_errmsg(n));
  for (utf8proc_ssize_t i = 0; i < n; ++i)
    append_utf8(out, static_cast<char32_t>(chars[static_cast<size_t>(i)]));
}

/// What steps may make of a text: far beyond any alphabet, whose characters become at most some
/// tens of bytes, and far below what a few replacements of a hostile file multiply to.
size_t most_bytes(std::string_view text) { return 4096 + 64 * text.size(); }

void check_growth(size_t bytes, std::string_view original) {
  if (bytes > most_bytes(original))
    throw input_error("the tokenizer's normalizer",
                      "expands a text to more than {} bytes from {} bytes", most_bytes(original),
                      original.size())
        .hint("tokenizer.json is damaged or hostile: download the model's file again");
}

/// `original` is what the first step got.
void replace_all(std::string& text, const std::string& from, const std::string& to,
                 std::string_view original) {
  if (from.empty() || text.find(from) == std::string::npos) return;
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string::npos; begin = at + from.size()) {
    check_growth(out.size() + at - begin + to.size(), original);
    out.append(text, begin, at - begin).append(to);
  }
  text = out.append(text, begin);
}

}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  const utf8proc_option_t options = options_of(form);
  std::vector<utf8proc_int32_t> chars;
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  while (done < text.size()) {
    // ASCII stays as it is in every form; only its last character may take marks that follow.
    const size_t other = static_cast<size_t>(
        std::find_if_not(text.begin() + static_cast<ptrdiff_t>(done), text.end(), is_ascii) -
        text.begin());
    const size_t begin = other == text.size() ? other : other - (other > done ? 1 : 0);
    const size_t end = static_cast<size_t>(
        std::find_if(text.begin() + static_cast<ptrdiff_t>(other), text.end(), is_ascii) -
        text.begin());
    out.append(text, done, begin - done);
    if (begin < end) append_normalized(text.substr(begin, end - begin), options, chars, out);
    done = end;
  }
  return out;
}

std::string apply_steps(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) switch (step.kind) {
      case NormalizerStep::Kind::unicode:
        out = normalize(out, step.form);
        break;
      case NormalizerStep::Kind::prepend:
        if (!out.empty()) out.insert(0, step.text);
        break;
      case NormalizerStep::Kind::replace:
        replace_all(out, step.text, step.replacement, text);
        break;
    }
  return out;
}

}  // namespace tandem::text
