#pragma once
#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recipe/scalar.h"

namespace tandem::recipe {

/// Access to one field of any type.
class Value {
 public:
  virtual ~Value() = default;
  virtual std::string type() const = 0;
  /// Sets the field. On failure returns the problem and leaves the field alone.
  /// models   where bare model names are looked up
  virtual std::string read(const Node& node, const Folders& models) = 0;
  /// The value; a path that was expanded when it was read stands as it was spelled, so that a
  /// record reveals nothing of this machine's environment.
  virtual std::string yaml() const = 0;
  virtual nlohmann::json json() const = 0;
  /// The numbers it holds, for range checks.
  virtual std::vector<double> numbers() const { return {}; }
  /// The path it holds, expanded, if it is one and not empty.
  virtual std::optional<std::filesystem::path> path() const { return std::nullopt; }
};

/// Access to a field of type T: a scalar, an optional scalar (default: unset) or a list of scalars.
/// Declared here and defined in recipe/value_of.h, so that units that list fields need neither its
/// templates nor JSON; a type's own source says `template std::unique_ptr<Value> value_of(T&);`.
template <class T>
std::unique_ptr<Value> value_of(T& field);

/// An enum, by its names.
std::unique_ptr<Value> enum_value(uint8_t& field, std::span<const std::string_view> names);

template <Enum T>
std::unique_ptr<Value> value_of(T& field) {
  static_assert(sizeof(T) == 1, "enums of recipes are of uint8_t");
  static constexpr auto kNames = enum_names(T{});
  return enum_value(reinterpret_cast<uint8_t&>(field), kNames);
}

}  // namespace tandem::recipe
