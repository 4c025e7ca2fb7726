#pragma once
#include <string>
#include <utility>

namespace tandem {

/// The source of draft tokens for speculation. A text is what a recipe's section `spec.draft` holds:
/// a kind, such as "ngram", or a YAML map, such as "{kind: model, path: tiny-2m}".
/// docs/reference.md lists kinds and keys; Model::open checks them.
struct Draft {
  Draft() = default;  // none: plain decoding
  Draft(const char* text) : settings(text) {}             // NOLINT: converts
  Draft(std::string text) : settings(std::move(text)) {}  // NOLINT: converts

  std::string settings = {};
};

}  // namespace tandem
