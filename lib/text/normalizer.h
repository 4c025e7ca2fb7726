#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::text {

/// Unicode normalisation form.
enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// `text` (well-formed UTF-8) in the given form.
/// cost     linear but for O(m log m) in the length m of a run of combining marks
std::string normalize(std::string_view text, NormalForm form);

/// One step of what a tokenizer does to text before it is cut into words.
struct NormalizerStep {
  enum class Kind : uint8_t { unicode, prepend, replace } kind;
  NormalForm form = NormalForm::nfc;  // unicode
  std::string text;                   // prepend: what; replace: what is looked for
  std::string replacement;            // replace
};

/// The steps in order; a part that is empty at a prepend step stays empty.
/// errors   kind input: replacements that multiply, 64 times the text and more
std::string apply_steps(const std::vector<NormalizerStep>& steps, std::string_view text);

}  // namespace tandem::text
