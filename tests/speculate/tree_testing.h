#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "source_dir.h"
#include "speculate/tree/acceptance.h"

namespace tandem::test {

using Rows = std::vector<std::vector<double>>;

inline speculate::AcceptanceVector vector_of(Rows rows) {
  speculate::AcceptanceVector v;
  v.rows = std::move(rows);
  v.method = "sequoia";
  return v;
}

/// tests/data/golden/sequoia/dp.json: optimal values from an independent implementation.
struct SequoiaGolden {
  io::Json json;
  std::map<std::string, speculate::AcceptanceVector> vectors;  // depth rows among them
};

inline const SequoiaGolden& sequoia_golden() {
  static const SequoiaGolden golden = [] {
    SequoiaGolden g;
    const auto path = source_dir() / "tests/data/golden/sequoia/dp.json";
    g.json = io::parse_json(io::read_file(path), path.string());
    for (const auto& [name, item] : g.json.at("vectors").items())
      g.vectors[name] = vector_of({item.at("p").get<std::vector<double>>()});
    for (const auto& [name, item] : g.json.at("matrices").items())
      g.vectors[name] = vector_of(item.at("rows").get<Rows>());
    return g;
  }();
  return golden;
}

}  // namespace tandem::test
