#pragma once
#include <memory>
#include <string>
#include <utility>

namespace tandem {

class Policy;

/// The KV cache and attention policy of a model. A text is what a recipe's section `cache` holds: a
/// kind, such as "full" or "hybrid", or a YAML map, such as "{kind: streaming, recent: 512}".
/// docs/reference.md lists kinds and keys; Model::open checks them.
struct Cache {
  Cache() = default;  // full attention
  Cache(const char* text) : settings(text) {}             // NOLINT: converts
  Cache(std::string text) : settings(std::move(text)) {}  // NOLINT: converts
  /// A policy of your own. A map may set dense_layers, the layers with full attention: "{dense_layers:
  /// [0]}". Without it the policy serves all layers that have no window.
  /// errors   kind usage: a null pointer
  Cache(std::shared_ptr<Policy> own, std::string text = "");  // NOLINT: converts
  template <class Own>
  Cache(std::shared_ptr<Own> own, std::string text = "")  // NOLINT: converts
      : Cache(std::shared_ptr<Policy>(std::move(own)), std::move(text)) {}

  std::string settings = {};
  std::shared_ptr<Policy> policy = {};
};

}  // namespace tandem
