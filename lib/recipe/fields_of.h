#pragma once
#include "recipe/fields.h"

// What recipe/fields.h only declares.
namespace tandem::recipe {

template <class T>
concept HasCheck = requires(const T& t, Problems& p) {
  t.check(p);
};

/// The visitor that all others use: turns `fields()` of a struct into a list that reading, dumping,
/// hashing and documenting walk.
class FieldLister {
 public:
  template <class T>
  void operator()(std::string_view name, T& field, std::string_view text) {
    (*this)(name, field, Limits{}, text);
  }
  template <class T>
  void operator()(std::string_view name, T& field, const Limits& limits, std::string_view text) {
    if constexpr (requires(FieldLister & v) { field.fields(v); })
      add(name, fields_of(field), limits, text);
    else
      add(name, value_of(field), limits, text);
  }

  std::vector<Field> list;

 private:
  void add(std::string_view name, Field section, const Limits& limits, std::string_view text);
  void add(std::string_view name, std::unique_ptr<Value> value, const Limits& limits,
           std::string_view text);
};

template <class T>
Field fields_of(T& object) {
  Field root;
  FieldLister lister;
  object.fields(lister);
  root.fields = std::move(lister.list);
  if constexpr (HasCheck<T>) root.check = [&object](Problems& p) { object.check(p); };
  return root;
}

}  // namespace tandem::recipe
