#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "recipe/node.h"

namespace tandem::recipe {

struct Field;

/// One key and the values it takes in turn.
struct SweepAxis {
  std::string key;
  std::vector<Node> values;
};

/// One combination of values, in the order of the axes.
using SweepPoint = std::vector<std::pair<std::string, Node>>;

/// Takes the `sweep` section out of a recipe tree. Each key holds a list, or text in the form of
/// --sweep; keys are dotted or nested.
/// errors   kind recipe, with position; as add_sweep
std::vector<SweepAxis> take_sweep(Node& tree);

/// Takes every list out of a recipe tree that stands where the schema has one value: it is the axis
/// of that key.
/// errors   kind recipe, with position; as add_sweep
void take_lists(std::vector<SweepAxis>& axes, Node& tree, const Field& schema);

/// Parses `KEY=LIST`: values separated by commas, each a YAML value or a range of counts
/// `1-8`, `0-64+16` (step), `1-256*2` (factor). An axis of the same key is replaced.
/// errors   kind usage without '='; kind recipe for a malformed list, nothing between two commas, a
///          value that is there twice
void add_sweep(std::vector<SweepAxis>& axes, const std::string& setting, const std::string& label);

/// Cross product, the last axis fastest; one empty point without axes.
/// errors   kind recipe: more than 100000 points
std::vector<SweepPoint> sweep_points(const std::vector<SweepAxis>& axes);

/// The axes as a `sweep:` section, empty without axes.
std::string dump_sweep(const std::vector<SweepAxis>& axes);

}  // namespace tandem::recipe
