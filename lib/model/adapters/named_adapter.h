#pragma once
#include <memory>
#include <string>

#include "model/adapters/any_adapter.h"

namespace tandem::model {

/// An adapter that stays apart from the weights, to be named by requests.
struct NamedAdapter {
  std::string name;
  std::shared_ptr<const AnyAdapter> adapter;
  float weight = 1;  // what it changes is multiplied by
};

}  // namespace tandem::model
