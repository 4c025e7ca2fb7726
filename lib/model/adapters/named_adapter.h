#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/adapters/any_adapter.h"

namespace tandem::model {

/// An adapter that stays apart from the weights, to be named by requests.
struct NamedAdapter {
  std::string name;
  std::shared_ptr<const AnyAdapter> adapter;
  float weight = 1;  // what it changes is multiplied by
};

/// The same of an adapter that reads `bytes`, and keeps them.
NamedAdapter named_in_memory(const std::string& name, std::vector<std::byte> bytes,
                             AnyAdapter adapter, float weight = 1);

}  // namespace tandem::model
