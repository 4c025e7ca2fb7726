#pragma once
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>
#include <utility>

#include "recipe/fields_of.h"
#include "recipe/value.h"

// What recipe/value.h only declares.
namespace tandem::recipe {

template <Enum T>
nlohmann::json json_of(T value) {
  return yaml_text(value);
}

/// A struct with fields in the place of a value: an item of a list, or a section that may be
/// unset. Errors name it by its kItems and kExample, where it has them.
template <class T>
concept Map = requires(T& t, FieldLister& v) {
  t.fields(v);
};

template <Map T>
std::string read_item(const Node& node, const Folders& models, T& out) {
  if (node.kind != Node::Kind::map) {
    if constexpr (requires { T::kExample; })
      return fmt::format("expected {} such as {}, found {}", T::kItems, T::kExample,
                         node.described());
    else
      return "expected a map of settings, found " + node.described();
  }
  T read;  // as strictly as a section
  Field fields = fields_of(read);
  read_fields(fields, node, models);
  out = std::move(read);
  return {};
}

template <Map T>
std::string yaml_text(T map) {
  return flow_text(fields_of(map));
}

template <Map T>
std::string type_name(const T&) {
  if constexpr (requires { T::kItems; })
    return std::string(T::kItems);
  else
    return "map";
}

template <Map T>
nlohmann::json json_of(T map) {
  return to_json(fields_of(map));
}

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

/// A field of type T: a scalar, an optional scalar (default: unset) or a list of scalars.
template <class T>
class ValueOf final : public Value {
 public:
  explicit ValueOf(T& field) : field_(field) {}

  std::string type() const override {
    if constexpr (IsOptional<T>::value)
      return type_name(typename T::value_type{});
    else if constexpr (IsVector<T>::value)
      return "list of " + type_name(typename T::value_type{});
    else
      return type_name(field_);
  }

  std::string read(const Node& node, const Folders& models) override {
    if constexpr (IsOptional<T>::value) {
      typename T::value_type value{};
      std::string problem = read_one(node, models, value);
      if (problem.empty()) field_ = std::move(value);
      return problem;
    } else if constexpr (IsVector<T>::value) {
      // One value stands for a list of one.
      const std::span<const Node> items =
          node.kind == Node::Kind::list ? std::span<const Node>(node.items) : std::span(&node, 1);
      T values;
      for (const Node& item : items) {
        typename T::value_type value{};
        if (std::string problem = read_one(item, models, value); !problem.empty()) return problem;
        values.push_back(std::move(value));
      }
      field_ = std::move(values);
      return {};
    } else {
      std::string problem = read_one(node, models, field_);
      if constexpr (kIsPath) spelling_ = is_expanded(node.scalar) ? node.scalar : std::string();
      return problem;
    }
  }

  std::string yaml() const override {
    if (!spelling_.empty()) return yaml_text(spelling_);
    if constexpr (IsOptional<T>::value) {
      return field_ ? yaml_text(*field_) : "null";
    } else if constexpr (IsVector<T>::value) {
      std::string text = "[";
      for (const auto& item : field_)
        text.append(text.size() > 1 ? ", " : "").append(yaml_text(item));
      return text + "]";
    } else {
      return yaml_text(field_);
    }
  }

  nlohmann::json json() const override {
    if (!spelling_.empty()) return spelling_;
    if constexpr (IsOptional<T>::value) {
      return field_ ? json_of(*field_) : nlohmann::json{};
    } else if constexpr (IsVector<T>::value) {
      auto list = nlohmann::json::array();
      for (const auto& item : field_) list.push_back(json_of(item));
      return list;
    } else {
      return json_of(field_);
    }
  }

  std::vector<double> numbers() const override {
    std::vector<double> list;
    if constexpr (IsOptional<T>::value) {
      if (field_) append_number(list, *field_);
    } else if constexpr (IsVector<T>::value) {
      for (const auto& item : field_) append_number(list, item);
    } else {
      append_number(list, field_);
    }
    return list;
  }

  std::optional<std::filesystem::path> path() const override {
    if constexpr (std::is_same_v<T, std::filesystem::path>)
      return field_.empty() ? std::nullopt : std::optional(field_);
    else if constexpr (std::is_same_v<T, AutoPath>)
      return field_.path.empty() ? std::nullopt : std::optional(field_.path);
    else if constexpr (std::is_same_v<T, ModelName>)
      return field_.value.empty() ? std::nullopt
                                  : std::optional(std::filesystem::path(field_.value));
    else
      return std::nullopt;
  }

 private:
  static constexpr bool kIsPath = std::is_same_v<T, std::filesystem::path> ||
                                  std::is_same_v<T, AutoPath> || std::is_same_v<T, ModelName>;

  template <class S>
  static std::string read_one(const Node& node, const Folders& models, S& out) {
    if constexpr (std::is_same_v<S, ModelName>)
      return read_model(node, models, out);
    else if constexpr (requires { read_item(node, models, out); })
      return read_item(node, models, out);
    else
      return read_scalar(node, out);
  }

  template <class N>
  static void append_number(std::vector<double>& list, const N& value) {
    if constexpr (std::is_arithmetic_v<N> && !std::is_same_v<N, bool>)
      list.push_back(static_cast<double>(value));
    else if constexpr (std::is_same_v<N, ByteSize> || std::is_same_v<N, TokenCount>)
      list.push_back(static_cast<double>(value.value));
    else if constexpr (std::is_same_v<N, Fraction> || std::is_same_v<N, Duration>)
      list.push_back(static_cast<double>(value));
  }

  T& field_;
  std::string spelling_;  // of a path that was expanded; else empty
};

template <class T>
std::unique_ptr<Value> value_of(T& field) {
  return std::make_unique<ValueOf<T>>(field);
}

}  // namespace tandem::recipe
