#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/problems.h"
#include "recipe/value.h"

namespace tandem::recipe {

/// What a field accepts beyond its type.
struct Limits {
  std::optional<double> min = {}, max = {};
  bool min_excluded = false;
  bool required = false;  // must be written somewhere
  bool input = false;     // names a file or folder that must exist
  std::string_view unit_name = {};
  std::string_view kinds = {};  // of a tagged section that have the field, as "self|model"

  Limits of(std::string_view names) const {
    Limits copy = *this;
    copy.kinds = names;
    return copy;
  }
  Limits unit(std::string_view name) const {
    Limits copy = *this;
    copy.unit_name = name;
    return copy;
  }
  Limits up_to(double high) const {
    Limits copy = *this;
    copy.max = high;
    return copy;
  }
  bool admit(double x) const;
  /// "0 .. 1", ">= 0", "> 0", or empty.
  std::string text() const;
  /// text() and the unit.
  std::string range() const;
};

inline Limits at_least(double low) { return {.min = low}; }
inline Limits above(double low) { return {.min = low, .min_excluded = true}; }
inline Limits between(double low, double high) { return {.min = low, .max = high}; }
inline Limits required_input() { return {.required = true, .input = true}; }
inline Limits optional_input() { return {.input = true}; }
inline Limits of_kind(std::string_view names) { return {.kinds = names}; }

/// One field of a recipe struct, bound to the object it was listed from: a value, or a section with
/// further fields. A section is tagged if fields have Limits::kinds: its first field, `kind`, says
/// which of them it has. Others cannot be written, and neither dumps nor hashes show them.
struct Field {
  std::string_view name = {};
  std::string_view text = {};
  Limits limits = {};
  std::unique_ptr<Value> value = {};          // null for a section
  std::vector<Field> fields = {};             // of a section
  std::function<void(Problems&)> check = {};  // the section's cross-field rules, may be empty
  std::shared_ptr<void> owner = {};           // the object, if the fields own it

  bool is_section() const { return value == nullptr; }
  /// Returns true if the section's present kind has this field.
  bool has(const Field& field) const;
  /// The text, and the kinds that have the field.
  std::string meaning() const;
};

/// The fields of a recipe struct as one nameless section; it refers to `object`. Declared here and
/// defined in recipe/fields_of.h, so that a struct is walked in one unit: its own source says
/// `template Field fields_of(GenerateRecipe&);`.
template <class T>
Field fields_of(T& object);

/// The fields of a recipe with its defaults, which they own.
template <class T>
Field schema_of() {
  auto defaults = std::make_shared<T>();
  Field root = fields_of(*defaults);
  root.owner = std::move(defaults);
  return root;
}

/// The field at a dotted key, or null.
const Field* find_field(const Field& root, std::string_view dotted);

/// Dotted keys of values, shortest first, whose last parts spell `word`: temperature, lora-rank for
/// train.lora.rank. With `near`, keys whose last part is nearest to it.
std::vector<std::string> keys_like(const Field& root, std::string_view word, bool near = false);

/// Required fields of a tree.
enum class Completeness : uint8_t {
  whole,    // all are written
  partial,  // some may be missing, or all: cross-field rules are then not checked
};

/// Fills the fields from a tree and checks everything: unknown keys, types, limits, cross-field
/// rules. Fields that the tree does not mention, or sets to null, keep their defaults.
/// models   where bare model names are looked up
/// errors   throws InvalidRecipe with up to 20 problems
void read_fields(Field& root, const Node& tree, const Folders& models = {},
                 Completeness completeness = Completeness::whole);

/// Names of the models in these folders, in alphabetical order.
std::vector<std::string> model_names(const Folders& models);

/// Checks that the files and folders named by input fields exist.
/// models   as read_fields had it, for the message
/// errors   kind input
void check_inputs(const Field& root, const Node& tree, const Folders& models = {});

/// Selects the keys that dump_yaml prints: all, or those that the tree sets and the required ones
/// that it lacks.
enum class Shown { all, written };

/// The values as YAML text; with `tree` each line ends with a comment that names its origin.
std::string dump_yaml(const Field& root, const Node* tree, Shown shown = Shown::all);

/// The values on one line: "{key: value, section: {key: value}}".
std::string flow_text(const Field& section);

/// The values as JSON, absent where unset.
nlohmann::json to_json(const Field& root);

/// SHA-256 over canonical JSON of everything that decides the result. It leaves out section output,
/// threads, device, ranks, the GPU to plan for, and settings without effect; of paths it has only
/// the last component, so that two machines agree.
std::string recipe_hash(const Field& root);

/// A key of a recipe, by its dotted name.
struct Key {
  std::string name;
  const Field* field;
};

/// All keys below `root`, or those of one of its sections.
std::vector<Key> keys_of(const Field& root, std::string_view section = {});

}  // namespace tandem::recipe
