#pragma once
#include <memory>
#include <string>

namespace tandem {

class Policy;

/// The KV cache and attention policy of a model. A text is what a recipe's section `cache` holds: a
/// kind, such as "hybrid", or a YAML map, such as "{kind: streaming, recent: 512}".
/// docs/reference.md lists kinds and keys; Model::open checks them.
struct Cache {
  Cache() = default;  // full attention
  Cache(const char* text) : settings(text) {}             // NOLINT: converts
  Cache(std::string text) : settings(std::move(text)) {}  // NOLINT: converts
  /// A policy of your own, with other keys of the section, such as "{dense_layers: [0]}".
  Cache(std::shared_ptr<Policy> own, std::string text = "")  // NOLINT: converts
      : settings(std::move(text)), policy(std::move(own)) {}

  std::string settings = {};
  std::shared_ptr<Policy> policy = {};
};

}  // namespace tandem
