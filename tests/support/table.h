#pragma once
#include <map>
#include <string>
#include <vector>

#include "support/runner.h"

/// The committed cells, tests/data/support.jsonl, from which scripts/make-tables.py makes the
/// table.
namespace tandem::support {

/// The message that refuses a method, by device; empty: it runs.
struct Cell {
  std::string cpu, gpu;

  bool operator==(const Cell&) const = default;
};
/// By method and key of the family.
using Cells = std::map<std::string, std::map<std::string, Cell>>;

/// Every method, the columns of the table in the order of kFamilies, and numbered reasons.
std::string text_of(const Cells& cells);
/// The cells of such a text.
Cells cells_of(const std::string& text);
/// The file of cells in the checkout.
std::filesystem::path cells_path();

/// A cell whose outcome is neither a result nor a refusal.
struct Failure {
  std::string method, family, place, message;
};

/// Runs every method on every family at these places, as many families at a time as there are
/// cores. Cells keep the outcome of other places.
std::vector<Failure> run_cells(const std::vector<Place>& places, Cells& cells);

/// Runs all cells at these places and checks that they are the committed ones. With
/// TANDEM_UPDATE_CELLS set, writes them instead.
void check_cells(const std::vector<Place>& places);

}  // namespace tandem::support
